package dockerexec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/agenttest"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	engines "github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A persistent one differs in what its first program does, and in that program's own folder.
func TestPersistentOfASpec(t *testing.T) {
	s := fullSpec()
	s.Process, s.Persistent = Process{}, "s1"
	made := s.engineSpec("", Prepared{}, networks.Wiring{})
	if got := made.Process.Args; !slices.Equal(got, []string{session.AgentPath, "lasting"}) {
		t.Errorf("%q", got)
	}
	if want := (specs.Mount{
		Type: engines.Tmpfs, Destination: control.SocketDir, Options: []string{
			"rw", "nosuid", "nodev", "size=65536", "mode=700", "noexec", "uid=2147484648", "gid=1001",
		},
	}); !has(made, want) {
		t.Errorf("%+v", made.Mounts)
	}
	if slices.ContainsFunc(made.Mounts, func(m specs.Mount) bool { return m.Destination == wire.SpoolPath }) {
		t.Error("it has a spool, which nobody reads")
	}
	if !strings.Contains(s.text(), `"lasting":"s1"`) {
		t.Error(s.text())
	}
}

// It is there for the next service, whatever the settings are by then, and until it is removed.
func TestAContainerPersistent(t *testing.T) { synctest.Test(t, aContainerPersistent) }

func aContainerPersistent(t *testing.T) {
	engine := newScriptedEngine(t)
	begin := func(platform Platform) *Executor {
		e := engine.executor()
		e.cfg.Platforms = always(platform)
		return e
	}
	first := begin(engine.platform())
	made := engine.startPersistent(t, first)
	asks := func(e *Executor) (string, error) {
		stream, err := e.AskPersistent(t.Context(), made.ID)
		if err != nil {
			return "", err
		}
		defer stream.Close()
		var a control.Answer
		err = errors.Join(stream.SetDeadline(time.Now().Add(time.Minute)), wire.WriteMessage(stream, wire.KindRequest, control.Request{Do: control.List}))
		err = errors.Join(err, wire.ReadMessage(stream, wire.KindAnswer, &a))
		return fmt.Sprint(a), err
	}
	if _, err := asks(first); err != nil {
		t.Fatal(err)
	}
	first.Shutdown()
	changed := engine.platform()
	changed.ImageID = "sha256:another"
	second := begin(changed)
	defer second.Shutdown()
	second.Start(t.Context(), anything{})
	found, err := second.Persistent(t.Context())
	if err != nil || len(found) != 1 || found[0].ID != made.ID || found[0].Spec.Persistent != "s1" {
		t.Fatalf("%+v, %v", found, err)
	}
	if _, err := asks(second); err != nil {
		t.Fatal(err)
	}
	if err := second.RemoveProcess(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := asks(second); !cerrdefs.IsNotFound(err) {
		t.Errorf("%v", err)
	}
}

// What says how far a sandbox reaches has locks of its own, and asks the Executor while it holds them.
func TestAdoptingAPersistentContainerAsksWithoutLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		defer e.Shutdown()
		id := engine.add(engine.persistentSpec("alice"))
		asked := 0
		e.gate.Store(new(Gate(found(func(Spec) (w Wanted) {
			if asked++; !e.mu.TryLock() {
				t.Error("it would wait for whoever asks it")
				return w
			}
			e.mu.Unlock()
			_ = e.PersistentRuns(id)
			return w
		}))))
		if err := e.Reconcile(t.Context()); err != nil || !e.PersistentRuns(id) || asked != 1 {
			t.Errorf("asked %d times: %v", asked, err)
		}
	})
}

// One that would see a hidden file, of which that became known while it was being started, does not run and begins nothing.
func TestAContainerThatIsExpelledAsItStarts(t *testing.T) {
	for kind, change := range map[string]func(*Spec){
		"persistent": func(s *Spec) { s.Persistent = "s1" },
		"process":    func(s *Spec) { s.Process = Process{ID: "p1", Dir: s.SpoolDir} },
	} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newScriptedEngine(t)
				e := engine.executor()
				defer e.Shutdown()
				spec := engine.spec("alice")
				change(&spec)
				engine.script(func(do func() error) error {
					defer e.Expel(spec.Fingerprint())
					return do()
				}, "Start")
				if _, err := e.startAlone(t.Context(), spec, quota.Token{}, kind); err == nil || !strings.Contains(err.Error(), "lost before the command began") {
					t.Error(err)
				}
				synctest.Wait()
				began := slices.ContainsFunc(engine.Calls("Signal"), func(c enginetest.Call) bool {
					return c.Signal == syscall.SIGUSR1
				})
				if left := len(engine.Containers()) + len(e.all); left != 0 || began {
					t.Errorf("%d are left; it began: %v", left, began)
				}
				if got := fmt.Sprint(e.cfg.Mounts.(*preparerLog).calls); got != "[prepare alice release alice]" {
					t.Error(got)
				}
			})
		})
	}
}

// Who asks a container that was paused on request is told so, and may resume it.
func TestAskingAContainerThatWasPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		defer e.Shutdown()
		made := engine.startPersistent(t, e)
		if err := e.PauseDetached(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := e.AskPersistent(t.Context(), made.ID); !errors.Is(err, life.ErrPaused) {
			t.Errorf("asked: %v", err)
		}
		if _, err := e.DialProcess(t.Context(), made.ID, 80); !errors.Is(err, life.ErrPaused) {
			t.Errorf("dialled: %v", err)
		}
		if err := e.ResumeDetached(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		stream, err := e.AskPersistent(t.Context(), made.ID)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.Close()
	})
}

// So is who connects to a port just when the container is paused.
func TestConnectingToAContainerThatIsPausedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		var bridges atomic.Int64
		engine.Serve(func(p enginetest.Program) {
			if bridges.Add(1) == 1 {
				engine.obey(p)
				return
			}
			defer p.Close()
			if agent, err := agenttest.Greet(p, wire.ForwardVersion); err == nil {
				<-agent.CloseChan()
			}
		})
		e := engine.executor()
		defer e.Shutdown()
		made := engine.startPersistent(t, e)
		dialled := make(chan error)
		go func() {
			_, err := e.DialProcess(t.Context(), made.ID, 80)
			dialled <- err
		}()
		synctest.Wait()
		if err := e.PauseDetached(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		if err := <-dialled; !errors.Is(err, life.ErrPaused) {
			t.Error(err)
		}
	})
}

// A container that runs without the service may end while it is made ready, as one of a call may. What it had is given back once.
func TestAContainerPersistentIsLostBeforeItIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.Serve(func(p enginetest.Program) { engine.Lose(p.Container.ID, true) })
		e := engine.executor()
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait() // until it follows Docker's events
		_, err := e.StartPersistent(t.Context(), engine.persistentSpec("alice"), quota.Token{})
		if err == nil || !strings.Contains(err.Error(), "lost before the command began") {
			t.Error(err)
		}
		synctest.Wait()
		log := e.cfg.Mounts.(*preparerLog)
		if got := fmt.Sprint(log.calls); got != "[prepare alice release alice]" || len(e.all) != 0 {
			t.Errorf("%s, and %d are known", got, len(e.all))
		}
	})
}
