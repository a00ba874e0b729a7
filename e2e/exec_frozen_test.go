package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/engine"
)

const freezesSoon = "SANDBOXD_IDLE_FREEZE_AFTER=1s"

// state is that of a user's containers, which is one.
func (l *lab) state(t *testing.T, user string) (states string) {
	t.Helper()
	list, err := l.client.Containers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.UserID == user {
			states += c.State
		}
	}
	return states
}

// frozen waits until a user's container is frozen, also as Docker sees it, and returns its id.
func (l *lab) frozen(t *testing.T, user string) (id string) {
	t.Helper()
	eventually(t, "the container of "+user+" is frozen", func() bool {
		if l.state(t, user) != "frozen" {
			return false
		}
		id = l.containerOf(t, user).ID
		found, err := l.engine.ContainerInspect(t.Context(), id)
		return err == nil && found.State.Paused
	})
	return id
}

// warmly runs a command that needs no new container.
func (l *lab) warmly(t *testing.T, user string) {
	t.Helper()
	begun := time.Now()
	out := l.run(t, user, types.Exec{Command: "echo there"})
	t.Logf("a frozen user's call took %v", time.Since(begun))
	if out.Stdout != "there\n" || out.Cold {
		t.Errorf("%+v", out)
	}
}

// An idle container is frozen, and nobody needs to know: calls thaw it, others of the user's start, and durable processes
// go on.
func TestAnIdleContainerIsFrozen(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "cold"
		l.register(t, user)
		process := l.startProcess(t, user, types.StartProcess{Command: "while :; do date +%s%N > /tmp/beat; sleep 0.1; done"})
		l.sh(t, user, "echo kept > /home/file")
		id := l.frozen(t, user)
		if got := l.sh(t, user, "cat /home/file"); got != "kept" {
			t.Errorf("%q", got)
		}
		for range 3 {
			if again := l.frozen(t, user); again != id {
				t.Errorf("it is another container")
			}
			l.warmly(t, user)
		}
		l.frozen(t, user)
		// Its mount points are in the home, so that whoever could change them is paused while it starts.
		if out := l.run(t, user, differently(1, "echo beside")); out.Stdout != "beside\n" {
			t.Errorf("%+v", out)
		}
		before := l.sh(t, user, "cat /tmp/beat")
		eventually(t, "the process goes on", func() bool { return l.sh(t, user, "cat /tmp/beat") != before })
		if got := l.process(t, user, process.ID); got.RestartCount != 0 || got.Status != types.ProcessRunning {
			t.Errorf("%+v", got)
		}
		lasts := make(chan types.Output)
		go func() {
			lasts <- l.run(t, user, types.Exec{Command: "for i in 1 2 3 4 5 6; do sleep 0.5; echo $i; done"})
		}()
		if out := <-lasts; out.Failed {
			t.Errorf("a command that takes longer than an idle container runs: %+v", out)
		}
	}, freezesSoon)
}

// A frozen container is there for the next service, which leaves it frozen until it is used.
func TestAFrozenContainerOutlivesTheService(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "slept"
		l.register(t, user)
		l.sh(t, user, "true")
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			id := l.frozen(t, user)
			l.stop(signal)
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
			if again := l.frozen(t, user); again != id {
				t.Errorf("after %v it is another one", signal)
			}
			l.warmly(t, user)
		}
		// Killed at any time around the freeze.
		for i := range 6 {
			l.sh(t, user, "true")
			time.Sleep(1200*time.Millisecond + time.Duration(i)*50*time.Millisecond)
			l.stop(syscall.SIGKILL)
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
			if out := l.run(t, user, types.Exec{Command: "echo there"}); out.Stdout != "there\n" {
				t.Errorf("%d: %+v", i, out)
			}
		}
	}, freezesSoon)
}

// What is done to a frozen container at Docker costs at most that container. One that was resumed serves on. Any other is replaced
// for the call that finds it so, unless that was sent to it already: then the call says that it was lost.
func TestAFrozenContainerBehindOurBack(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "behind"
		l.register(t, user)
		for _, tt := range []struct {
			what   string
			do     func(id string) error
			serves bool // as before
		}{
			{"unpaused", func(id string) error { return l.engine.ContainerUnpause(t.Context(), id) }, true},
			{"killed", func(id string) error {
				if err := l.engine.ContainerKill(t.Context(), id, "KILL"); err != nil {
					t.Logf("killed: %v", err) // Docker waits for its end for some seconds only
				}
				return nil
			}, false},
			{"removed", func(id string) error {
				l.removeByForce(id)
				return nil
			}, false},
			{"restarted", func(id string) error {
				if err := l.engine.ContainerRestart(t.Context(), id, container.StopOptions{Timeout: new(0)}); err != nil {
					t.Logf("restarted: %v", err) // it has ended, and the service may be removing it
				}
				return nil
			}, false},
		} {
			l.sh(t, user, "true")
			id := l.frozen(t, user)
			if err := tt.do(id); err != nil {
				t.Fatalf("%s: %v", tt.what, err)
			}
			out, err := l.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, Command: "echo there"})
			lost := !tt.serves && err != nil && strings.Contains(err.Error(), "the container was lost while the command ran")
			if !lost && (err != nil || out.Stdout != "there\n" || tt.serves && out.Cold) {
				t.Errorf("%s: %+v, %v", tt.what, out, err)
			}
			l.sh(t, user, "true")
			eventually(t, "there is one container after it was "+tt.what, func() bool {
				list := l.containersOf(t, user)
				return len(list) == 1 && (list[0].ID == id) == tt.serves
			})
		}
	}, freezesSoon)
}

// A frozen container is stopped as a whole, gVisor's kernel with it, whether its programs sleep, run, or wake each other. Docker is
// answered all the same, and has it go on, and end, as it asks.
func TestAFrozenContainerStandsStill(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		const user = "still"
		l.register(t, user)
		for _, command := range []string{"sleep 7313", "while :; do :; done", "cd /tmp; mkfifo a b; cat a >b & (echo; cat b) >a"} {
			process := l.startProcess(t, user, types.StartProcess{Command: command})
			if _, err := l.client.Pause(t.Context(), user); err != nil {
				t.Fatal(err)
			}
			id := l.containerOf(t, user).ID
			// Its shim can be seen, and so missed below; and so can what is mounted into it, by which leftOf knows a run's.
			if shim, err := engine.ShimOf(id); err != nil || !strings.Contains(strings.Join(shim.Sources, "\n"), runDir+"/") {
				t.Fatalf("its shim is %+v, %v", shim, err)
			}
			l.standsStill(t, id)
			if err := l.engine.ContainerUnpause(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			eventually(t, "Docker pauses it", func() bool { return l.engine.ContainerPause(t.Context(), id) == nil }) // as runc gives up a freeze that takes long
			if err := l.engine.ContainerKill(t.Context(), id, "USR1"); err != nil {
				t.Logf("docker kill: %v", err) // gVisor's, frozen or not, is not killed while it is paused
			}
			l.standsStill(t, id)
			if err := l.engine.ContainerRemove(t.Context(), id, container.RemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
				t.Error(err)
			}
			eventually(t, "its shim is gone", func() bool { _, err := engine.ShimOf(id); return err != nil })
			eventually(t, "its process has ended", func() bool { return l.process(t, user, process.ID).Status == types.ProcessExited })
			if err := l.client.RemoveProcess(t.Context(), user, process.ID); err != nil {
				t.Error(err)
			}
		}
	})
}

// standsStill requires that a container takes no processor time while Docker is asked about it, and that gVisor's kernel, which
// is its first process, has been stopped.
func (l *lab) standsStill(t *testing.T, id string) {
	t.Helper()
	before, err := cgroup.ThisHost().Usage(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.engine.ContainerTop(t.Context(), id, nil); err != nil {
		t.Error(err)
	}
	found, err := l.engine.ContainerInspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if !found.State.Paused {
		t.Error("it is not paused")
	}
	if after, err := cgroup.ThisHost().Usage(id); err != nil || after.CPU != before.CPU {
		t.Errorf("a frozen container took %v of processor time, %v", after.CPU-before.CPU, err)
	}
	if !strings.HasPrefix(found.HostConfig.Runtime, "runsc") {
		return // of runc's it is known
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", found.State.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if state := strings.Fields(string(stat))[2]; state != "T" {
		t.Errorf("gVisor's kernel of a frozen container is in state %s", state)
	}
}

// Frozen containers go in their time, whole, those that were used longest ago first.
func TestFrozenContainersAreRemoved(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		var ids []string
		for i := range 3 {
			user := fmt.Sprintf("old-%d", i)
			l.register(t, user)
			l.sh(t, user, "true")
			ids = append(ids, l.frozen(t, user))
		}
		eventually(t, "the first has gone", func() bool { return len(l.containers(t)) == 2 })
		eventually(t, "its shim is gone", func() bool { _, err := engine.ShimOf(ids[0]); return err != nil })
		if l.state(t, "old-0")+l.state(t, "old-2") != "frozen" {
			t.Errorf("another went: %q, %q", l.state(t, "old-0"), l.state(t, "old-2"))
		}
	}, freezesSoon, "SANDBOXD_IDLE_MAX_CONTAINERS=2")
}

// With Docker started again, what was frozen is gone, and what was paused on request is not started before it is resumed.
func TestDockerRestartsWithFrozenContainers(t *testing.T) {
	engine := newPrivateEngine(t)
	engine.place.giveImage(t, "small:latest")
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			l, err := openLab(t, engine.place, append(runtimeSettings(runtime), "SANDBOXD_DOCKER_IMAGE=small", freezesSoon))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(l.close)
			l.register(t, "frozen")
			l.register(t, "paused")
			l.sh(t, "frozen", "true")
			process := l.startProcess(t, "paused", types.StartProcess{Argv: []string{"sleep", "7312"}, KeepAlive: true})
			if _, err := l.client.Pause(t.Context(), "paused"); err != nil {
				t.Fatal(err)
			}
			l.frozen(t, "frozen")
			engine.stop()
			engine.start(t)
			if out := l.run(t, "frozen", types.Exec{Command: "echo there"}); out.Stdout != "there\n" {
				t.Errorf("%+v", out)
			}
			eventually(t, "the end of the process is known", func() bool { return l.process(t, "paused", process.ID).Status == types.ProcessExited })
			if _, err := l.client.Resume(t.Context(), "paused"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the process is started again", func() bool { return l.process(t, "paused", process.ID).Status == types.ProcessRunning })
		})
	}
}
