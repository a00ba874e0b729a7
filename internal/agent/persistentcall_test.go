package agent

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// ofCall makes a command that of a call.
func ofCall(r *control.Request) { r.Run.Call, r.Run.GraceMs, r.Tag = true, 100, "call" }

// The command of a call ends when the call leaves it, however it leaves; one that nobody's call has begun goes on. What has made
// itself independent goes on as well.
func TestACallLeavesItsCommand(t *testing.T) {
	for name, leave := range map[string]func(*persistentUnderTest, interface{ Reset() error }){
		"it breaks off":          func(_ *persistentUnderTest, s interface{ Reset() error }) { _ = s.Reset() },
		"its connection is lost": func(l *persistentUnderTest, _ interface{ Reset() error }) { l.lose(); l.connect() },
	} {
		t.Run(name, func(t *testing.T) {
			l := beginPersistent(t)
			other, goesOn := l.start("echo on; exec sleep 7701")
			stream, _ := l.start("setsid sleep 7702 & trap '' TERM; echo on; while :; do sleep 7703; done", ofCall)
			for _, s := range []interface{ Read([]byte) (int, error) }{other, stream} {
				if _, err := told(s, "on"); err != nil {
					t.Fatal(err)
				}
			}
			leave(l, stream)
			waittest.Until(t, "the call's command has ended", func() bool {
				list := l.list()
				return len(list) == 1 && list[0].PID == goesOn
			})
			own, _ := l.start("ps -eo args")
			if text := rest(t, own); !strings.Contains(text, "sleep 7701") || strings.Contains(text, "sleep 7703") {
				t.Errorf("%s", text)
			}
		})
	}
}

// A command that is asked to end has its grace, and is told so at once.
func TestACommandIsAskedToEnd(t *testing.T) {
	l := beginPersistent(t)
	polite, _ := l.start("trap 'echo asked; exit 4' TERM; echo on; while :; do sleep 0.01; done", ofCall)
	if _, err := told(polite, "on\n"); err != nil {
		t.Fatal(err)
	}
	if _, answer := l.ask(control.Request{Do: control.End, Tag: "call", GraceMs: 60_000}); answer.Fault != wire.FaultNone {
		t.Errorf("%+v", answer)
	}
	if text := strings.ReplaceAll(rest(t, polite), "(Terminated\n)", ""); text != "asked\n[4 0 false]" { // the shell may tell of its sleep
		t.Errorf("%q", text)
	}
	if _, answer := l.ask(control.Request{Do: control.End, Tag: "call"}); answer.Fault != control.FaultMissing {
		t.Errorf("one that has ended: %+v", answer)
	}
	stubborn, _ := l.start("trap '' TERM; echo on; while :; do sleep 0.01; done", ofCall)
	if _, err := told(stubborn, "on\n"); err != nil {
		t.Fatal(err)
	}
	l.ask(control.Request{Do: control.End, Tag: "call", GraceMs: 50})
	if text := rest(t, stubborn); text != "[0 9 false]" {
		t.Errorf("%q", text)
	}
}
