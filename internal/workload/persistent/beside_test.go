package persistent

import (
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// What the service runs beside a process may print so much, and what fails is not believed.
func TestWhatIsPrintedBesideAProcess(t *testing.T) {
	for name, tt := range map[string]struct {
		prints string
		exit   wire.Exit
		fault  string
		want   string
	}{
		"a list":              {prints: "/home/a\x00", want: "/home/a\x00"},
		"nothing":             {},
		"too much":            {prints: strings.Repeat("x", 101), fault: "more than it may"},
		"an earlier agent's":  {prints: "usage", exit: wire.Exit{Code: 1}, fault: "has ended with 1"},
		"one that was killed": {exit: wire.Exit{Signal: 9}, fault: "signal 9"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			s := l.open()
			l.made["c-web"] = dockerexec.Spec{}
			l.answer = func(s *yamux.Stream, r control.Request) {
				_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: 7})
				if r.Do != control.Begin {
					return
				}
				if r.Run.Root || !r.Run.EndsAll || !r.Run.Call || r.Run.Shell != "" || len(r.Run.Process.Env) > 0 {
					t.Errorf("%+v", r.Run)
				}
				if tt.prints != "" {
					_, _ = s.Write(append(append([]byte{}, header(wire.KindStdout, len(tt.prints))...), tt.prints...))
				}
				_ = wire.WriteMessage(s, wire.KindExit, tt.exit)
			}
			got, err := s.PrintBeside(t.Context(), "c-web", []string{"look"}, time.Minute, 100)
			if tt.fault == "" && err != nil || tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault)) {
				t.Errorf("%v, want %q", err, tt.fault)
			}
			if err == nil && string(got) != tt.want {
				t.Errorf("%q", got)
			}
		})
	}
	l := newLab(t)
	if _, err := l.open().PrintBeside(t.Context(), "gone", []string{"look"}, time.Minute, 100); err == nil {
		t.Error("a container that is gone answers")
	}
}
