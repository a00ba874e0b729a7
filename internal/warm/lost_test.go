package warm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// A container that is lost while it is adopted or made is replaced, and the call goes on at once. Docker keeps
// the stream open.
func TestAContainerThatIsLostBeforeItIsReady(t *testing.T) {
	for name, adopted := range map[string]bool{"adopted": true, "made": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newLab(t)
				if adopted {
					engine.has("alice")
				}
				engine.Serve(func(p enginetest.Program) {
					if p.Container.ID != firstID {
						engine.obey(p)
					}
				})
				e := engine.serve()
				defer e.stop()
				time.AfterFunc(time.Second, func() { engine.Lose(firstID, true) })
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
		engine := newLab(t)
		engine.has("alice")
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
		e := engine.serve()
		defer e.stop()
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
			engine := newLab(t)
			engine.Script(func(call enginetest.Call, do func() error) error {
				if call.Verb != "Start" {
					return do()
				}
				engine.Lose(call.Name, false)
				return why
			})
			e := engine.serve()
			defer e.stop()
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			if engine.Made() != tries || errors.Is(err, dockerexec.ErrLost) != (tries > 1) || !strings.Contains(fmt.Sprint(err), "cannot start: ") {
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
			engine := newLab(t)
			fails := tt.fails
			engine.script(func(do func() error) (err error) {
				if len(fails) == 0 {
					return do()
				}
				err, fails = fails[0], fails[1:]
				return err
			}, "Start")
			e := engine.serve()
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			e.stop()
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
		serve func(s *lab, p enginetest.Program)
		after time.Duration
		made  int
		lost  bool
		want  string
	}{
		{
			"nobody answers", func(*lab, enginetest.Program) {},
			session.HandshakeLimit + 2*time.Second, 1, false, "the agent does not answer",
		},
		{
			"lost each time",
			func(s *lab, p enginetest.Program) {
				if hears(p) {
					s.Lose(p.Container.ID, true)
				}
			},
			0, containerTries, true, "lost before the command began",
		},
		{
			"the engine's own error", func(_ *lab, p enginetest.Program) { ends(p) },
			2 * time.Second, 1, false, `cannot start the agent: Docker says "OCI runtime exec failed`,
		},
		{
			"the engine's own error, of what is gone",
			func(s *lab, p enginetest.Program) { s.Lose(p.Container.ID, false); ends(p) },
			0, containerTries, true, "OCI runtime exec failed",
		},
		{
			"the engine's own error, and then the event",
			func(s *lab, p enginetest.Program) {
				ends(p)
				time.AfterFunc(time.Second, func() { s.Lose(p.Container.ID, true) })
			}, containerTries * time.Second, containerTries, true, "OCI runtime exec failed",
		},
		{
			"the engine's own error, which does not know yet",
			func(s *lab, p enginetest.Program) {
				s.Change(p.Container.ID, func(c *engine.Container) { c.PID = 1 << 30 })
				ends(p)
			}, containerTries * 2 * time.Second, containerTries, true, "OCI runtime exec failed",
		},
		{
			"the engine's own error, and the stream stays open",
			func(_ *lab, p enginetest.Program) { says(p) },
			3 * time.Second, 1, false, "OCI runtime exec failed",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newLab(t)
				engine.Serve(func(p enginetest.Program) { tt.serve(engine, p) })
				e := engine.serve()
				defer e.stop()
				begun := time.Now()
				_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
				if took := time.Since(begun); err == nil || took != tt.after || engine.Made() != tt.made || errors.Is(err, dockerexec.ErrLost) != tt.lost {
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
		engine := newLab(t)
		e := engine.serve()
		defer e.stop()
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
		engine := newLab(t)
		e := engine.serve()
		defer e.stop()
		run := func() error {
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			return err
		}
		if err := run(); err != nil {
			t.Fatal(err)
		}
		engine.Serve(breaks(func(string) {}))
		for _, c := range e.ForCalls() {
			c.Session().Close()
		}
		if err := run(); !errors.Is(err, session.ErrBroken) || engine.Made() != 2 {
			t.Errorf("in %d containers: %v", engine.Made(), err)
		}
	})
}

// Expelling a container that is being made does not wait for it, and no call gets it.
func TestExpelOfWhatIsBeingMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newLab(t)
		engine.Serve(func(enginetest.Program) {}) // the agent does not answer
		e := engine.serve()
		defer e.stop()
		done := make(chan error)
		go func() {
			_, err := e.Run(context.WithoutCancel(t.Context()), engine.spec("alice"), aCommand, discard)
			done <- err
		}()
		synctest.Wait()
		begun := time.Now()
		for range containerTries {
			e.Expel(engine.spec("alice").Fingerprint())
			if took := time.Since(begun); took > 0 {
				t.Errorf("the watch of all users stands still for %v", took)
			}
			waittest.Pass(3 * time.Second)
			begun = time.Now()
		}
		if err := <-done; !errors.Is(err, dockerexec.ErrLost) {
			t.Errorf("the call that waited: %v", err)
		}
	})
}
