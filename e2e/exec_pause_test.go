package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// A sandbox that is paused does nothing, not even when the service is started again, until something is run in it.
func TestPause(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "away"
		l.register(t, user)
		process := l.startProcess(t, user, types.StartProcess{Command: "while :; do date +%s%N > /home/beat; sleep 0.1; done", Permissions: workspace})
		l.sh(t, user, "true")
		beat := func() string { return l.read(t, user, "/home/beat") }
		eventually(t, "the process writes", func() bool { return holds(l.at(user, "beat")) != "" })
		pause := func() {
			t.Helper()
			box, err := l.client.Pause(t.Context(), user)
			if err != nil || !box.Paused {
				t.Fatalf("%+v, %v", box, err)
			}
		}
		still := func(when, at string) {
			t.Helper()
			if got := l.process(t, user, process.ID); got.Status != types.ProcessPaused || got.PID == nil {
				t.Errorf("%s: the process is %s, %v", when, got.Status, got.PID)
			}
			for _, found := range l.containersOf(t, user) {
				got, err := l.engine.ContainerInspect(t.Context(), found.ID)
				if err != nil || !got.State.Paused {
					t.Errorf("%s: %s is not paused: %v", when, found.Names, err)
				}
			}
			if now := beat(); now != at {
				t.Errorf("%s: the process went on from %q to %q", when, at, now)
			}
		}
		pause()
		at := beat()
		still("paused", at)
		if l.state(t, user) != "frozen" {
			t.Errorf("its container is %s", l.state(t, user))
		}
		pause() // once more
		_, err := l.client.Exec(t.Context(), user, types.Exec{Command: "true", OnlyIfRunning: true})
		if kindOf(err) != types.Conflict || !strings.Contains(err.Error(), "is paused") {
			t.Errorf("only if it runs: %v", err)
		}
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			l.stop(signal)
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
			if box, err := l.client.Get(t.Context(), user); err != nil || !box.Paused {
				t.Errorf("the next service says %+v, %v", box, err)
			}
			still("after "+signal.String(), at)
		}
		before := beat()
		l.warmly(t, user) // resumes it
		eventually(t, "the process goes on", func() bool { return beat() != before })
		if got := l.process(t, user, process.ID); got.RestartCount != 0 || got.Status != types.ProcessRunning {
			t.Errorf("%+v", got)
		}
		pause()
		before = beat()
		if box, err := l.client.Resume(t.Context(), user); err != nil || box.Paused {
			t.Errorf("%+v, %v", box, err)
		}
		eventually(t, "the process goes on again", func() bool { return beat() != before })
		// What is paused can be stopped.
		pause()
		if got, err := l.client.StopProcess(t.Context(), user, process.ID, ""); err != nil || got.Status != types.ProcessStopped {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// What is done to a paused process at Docker is heard of, and it is not started again before the sandbox is resumed.
func TestAPausedProcessBehindOurBack(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "dozes"
		l.register(t, user)
		process := l.startProcess(t, user, types.StartProcess{Command: "sleep 7311", KeepAlive: true})
		if _, err := l.client.Pause(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		l.removeByForce(l.containerOf(t, user).ID)
		eventually(t, "the service knows that it has ended", func() bool { return l.process(t, user, process.ID).Status == types.ProcessExited })
		l.stop(syscall.SIGKILL)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if n := len(l.containersOf(t, user)); n != 0 {
			t.Errorf("it has %d containers while it is paused", n)
		}
		if _, err := l.client.Resume(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is started again", func() bool { return l.process(t, user, process.ID).Status == types.ProcessRunning })
	})
}
