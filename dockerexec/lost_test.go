package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A container that is lost while it is adopted or made is replaced, and the call goes on at once. Docker keeps
// the stream open.
func TestAContainerThatIsLostBeforeItIsReady(t *testing.T) {
	for name, adopted := range map[string]bool{"adopted": true, "made": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newScriptedEngine(t)
				first := strings.Repeat("0", 63) + "1"
				engine.Serve(func(p enginetest.Program) {
					if p.Container.ID != first {
						engine.obey(p)
					}
				})
				if adopted {
					engine.has("alice")
				}
				e := engine.executor()
				e.Start(t.Context(), anything{})
				defer e.Shutdown()
				time.AfterFunc(time.Second, func() { engine.Lose(first, true) })
				begun := time.Now()
				_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
				if took := time.Since(begun); err != nil || took != time.Second || engine.Made() != 2 {
					t.Errorf("after %v, in %d containers: %v", took, engine.Made(), err)
				}
			})
		})
	}
}

// The previous service's agent may still be ending, with all that begins beside it. The container stays.
func TestAnAgentThatIsEndedByTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		died := 0
		engine.Serve(func(p enginetest.Program) {
			switch died++; died {
			case 1:
				refuses(p, "OCI runtime exec failed: write init-p: broken pipe: unknown")
				_ = p.Close()
			case 2:
				_ = p.Close()
			default:
				engine.obey(p)
			}
		})
		engine.has("alice")
		e := engine.executor()
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		if _, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || engine.Made() != 1 || died != 3 {
			t.Errorf("the %d. agent, in %d containers: %v", died, engine.Made(), err)
		}
	})
}

// One that is removed before it is started is lost, too.
func TestAContainerThatIsRemovedBeforeItStarts(t *testing.T) {
	for why, tries := range map[error]int{
		cerrdefs.ErrConflict: containerTries, cerrdefs.ErrNotFound: containerTries,
		errors.New("it cannot"): 1,
	} {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			engine.Script(func(call enginetest.Call, do func() error) error {
				if call.Verb != "Start" {
					return do()
				}
				engine.Lose(call.Name, false)
				return why
			})
			e := engine.executor()
			e.Start(t.Context(), anything{})
			defer e.Shutdown()
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			if engine.Made() != tries || errors.Is(err, errLost) != (tries > 1) || !strings.Contains(fmt.Sprint(err), "cannot start: ") {
				t.Errorf("%v: in %d containers: %v", why, engine.Made(), err)
			}
		})
	}
}

// A container that gVisor itself failed to start is made once more; one whose program cannot start is not.
func TestAStartThatGVisorFails(t *testing.T) {
	died := fmt.Errorf("OCI runtime start failed: EOF: %w", engine.ErrRuntimeDied)
	for _, tt := range []struct {
		fails []error
		made  int
		works bool
	}{
		{[]error{died}, 2, true},
		{[]error{died, died}, 2, false},
		{[]error{errors.New(`exec: "x": executable file not found in $PATH`)}, 1, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			fails := tt.fails
			engine.script(func(do func() error) (err error) {
				if len(fails) == 0 {
					return do()
				}
				err, fails = fails[0], fails[1:]
				return err
			}, "Start")
			e := engine.executor()
			e.Start(t.Context(), anything{})
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			e.Shutdown()
			if engine.Made() != tt.made || (err == nil) != tt.works || len(engine.Containers()) > engine.Made() {
				t.Errorf("%v: in %d containers: %v", tt.fails, engine.Made(), err)
			}
			if !tt.works && (len(engine.Containers()) != 0 || engine.spools() != "" || !strings.Contains(err.Error(), "cannot start: ")) {
				t.Errorf("%v: left %v, %s: %v", tt.fails, engine.Containers(), engine.spools(), err)
			}
		})
	}
}

// Whatever happens is over in seconds, and nothing is left of what was tried.
func TestContainersThatDoNotBecomeReady(t *testing.T) {
	says := func(p enginetest.Program) {
		refuses(p, "OCI runtime exec failed: exec failed: cannot exec in a stopped container: unknown")
	}
	ends := func(p enginetest.Program) { says(p); _ = p.Close() }
	for _, tt := range []struct {
		name  string
		serve func(s *scriptedEngine, p enginetest.Program)
		after time.Duration
		made  int
		lost  bool
		want  string
	}{
		{
			"nobody answers", func(*scriptedEngine, enginetest.Program) {},
			session.HandshakeLimit + endingLag, 1, false, "the agent does not answer",
		},
		{
			"lost each time",
			func(s *scriptedEngine, p enginetest.Program) {
				if hears(p) {
					s.Lose(p.Container.ID, true)
				}
			},
			0, containerTries, true, "lost before the command began",
		},
		{
			"the engine's own error", func(_ *scriptedEngine, p enginetest.Program) { ends(p) },
			endingLag, 1, false, `cannot start the agent: Docker says "OCI runtime exec failed`,
		},
		{
			"the engine's own error, of what is gone",
			func(s *scriptedEngine, p enginetest.Program) { s.Lose(p.Container.ID, false); ends(p) },
			0, containerTries, true, "OCI runtime exec failed",
		},
		{
			"the engine's own error, and then the event",
			func(s *scriptedEngine, p enginetest.Program) {
				ends(p)
				time.AfterFunc(time.Second, func() { s.Lose(p.Container.ID, true) })
			}, containerTries * time.Second, containerTries, true, "OCI runtime exec failed",
		},
		{
			"the engine's own error, which does not know yet",
			func(s *scriptedEngine, p enginetest.Program) {
				s.Change(p.Container.ID, func(c *engine.Container) { c.PID = 1 << 30 })
				ends(p)
			}, containerTries * endingLag, containerTries, true, "OCI runtime exec failed",
		},
		{
			"the engine's own error, and the stream stays open",
			func(_ *scriptedEngine, p enginetest.Program) { says(p) },
			time.Second + endingLag, 1, false, "OCI runtime exec failed",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newScriptedEngine(t)
				engine.Serve(func(p enginetest.Program) { tt.serve(engine, p) })
				e := engine.executor()
				e.Start(t.Context(), anything{})
				defer e.Shutdown()
				begun := time.Now()
				_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
				if took := time.Since(begun); err == nil || took != tt.after || engine.Made() != tt.made || errors.Is(err, errLost) != tt.lost {
					t.Errorf("after %v, in %d containers: %v", took, engine.Made(), err)
				}
				if err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %s", err, tt.want)
				}
				synctest.Wait()
				if left := engine.spools(); left != "" || len(engine.Containers()) != 0 {
					t.Errorf("left: %v, %s", engine.Containers(), left)
				}
			})
		})
	}
}

// A caller who leaves while the command begins costs that command, and not the container with all that runs there.
func TestACallerWhoLeavesAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		why := errors.New("the caller has gone")
		for range 10 {
			ctx, leave := context.WithCancelCause(t.Context())
			c := aCommand
			c.Started = func() { leave(why) }
			if _, err := e.Run(ctx, engine.spec("alice"), c, discard); !errors.Is(err, why) {
				t.Errorf("%v", err)
			}
		}
		if _, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || engine.Made() != 1 {
			t.Errorf("in %d containers: %v", engine.Made(), err)
		}
	})
}

// A session that is known to be broken has not begun a command. One that breaks later may have.
func TestACommandBeginsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		run := func() error {
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			return err
		}
		if err := run(); err != nil {
			t.Fatal(err)
		}
		e.mu.Lock()
		for _, w := range e.calls {
			w.sess.Close()
		}
		engine.Serve(breaks(func(string) {}))
		e.mu.Unlock()
		if err := run(); !errors.Is(err, session.ErrBroken) || engine.Made() != 2 {
			t.Errorf("in %d containers: %v", engine.Made(), err)
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
		spec := engine.spec("alice")
		spec.Persistent = "s1"
		if _, err := e.StartPersistent(t.Context(), spec, quota.Token{}); err == nil || !strings.Contains(err.Error(), "lost before the command began") {
			t.Error(err)
		}
		synctest.Wait()
		log := e.cfg.Mounts.(*preparerLog)
		if got := fmt.Sprint(log.calls); got != "[prepare alice release alice]" || len(e.all) != 0 {
			t.Errorf("%s, and %d are known", got, len(e.all))
		}
	})
}
