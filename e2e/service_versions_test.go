package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// previousVersion is where the programs of a version before are, which scripts/setup.sh tests has built.
func previousVersion(t *testing.T, of string) string {
	t.Helper()
	out, err := exec.Command("../scripts/before.sh", of).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		t.Fatalf("cannot build the version before: %s", failed.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// What the version before has made goes on under this one: processes with their network, homes, sandboxes' users.
// Its containers of calls serve this version or are replaced by it, and none is left.
func TestUpgrade(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		earlier := previousVersion(t, "containers")
		l.stop(syscall.SIGTERM)
		l.from = earlier
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		l.traveller(t, w, "moving")
		own := w.fresh()
		if err := w.Origin(own); err != nil {
			t.Fatal(err)
		}
		allowed, denied := w.name(t, "upgrade", own), w.name(t, "denied", own)
		ask := "curl -sS --max-time 3 http://" + allowed + "/hello || echo no; curl -sS --max-time 3 http://" + denied + "/hello 2>&1"
		p := l.startProcess(t, "moving", types.StartProcess{
			Permissions: []string{"@network"}, AllowedDomains: []string{allowed}, Secrets: map[string]string{"TOKEN": "kept"},
			Command: "while :; do " + ask + "; echo $TOKEN; sleep 0.1; done", KeepAlive: true,
		})
		prints(t, p, "hello from "+allowed)
		l.sh(t, "moving", "echo before > note")
		l.reach(t, "moving", ask, allowed)

		l.stop(syscall.SIGKILL)
		l.from = ""
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		answered := func() int { return strings.Count(logOf(t, p), "hello from "+allowed) }
		before := answered()
		eventually(t, "the process reaches what it may", func() bool { return answered() > before })
		now := l.process(t, "moving", p.ID)
		if now.Status != types.ProcessRunning || now.RestartCount != 0 || now.PID == nil || *now.PID != *p.PID {
			t.Errorf("it was %+v, it is %+v", p, now)
		}
		if strings.Contains(logOf(t, p), "hello from "+denied) {
			t.Error("the process has reached what it may not")
		}
		l.traveller(t, w, "moving")
		if got := l.sh(t, "moving", "cat note; echo after >> note"); got != "before" {
			t.Errorf("the home has %q", got)
		}
		if out := l.reach(t, "moving", hello("http://"+allowed)+"; "+hello("http://"+denied), allowed); !strings.Contains(out.Stdout, "hello from "+allowed) || strings.Contains(out.Stdout, "hello from "+denied) {
			t.Errorf("a call by name got %q", out.Stdout)
		}
		eventually(t, "one container for each view", func() bool { return len(l.containersOf(t, "moving")) <= 3 })
		if err := l.engine.ContainerKill(t.Context(), "daycare-process-"+p.ID, "KILL"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the process comes back under this version", func() bool {
			now = l.process(t, "moving", p.ID)
			return now.Status == types.ProcessRunning && now.RestartCount == 1
		})
		secrets := func() int { return strings.Count(logOf(t, p), "kept\n") }
		had := secrets()
		eventually(t, "it has its secret", func() bool { return secrets() > had })
	})
}
