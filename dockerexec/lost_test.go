package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/session"
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
				engine.attach = func(id string, conn attachStream) {
					if id != first {
						engine.obey(conn)
					}
				}
				if adopted {
					engine.has("alice")
				}
				e := engine.executor()
				e.Start(t.Context(), noProcesses{})
				defer e.Shutdown()
				time.AfterFunc(time.Second, func() { engine.lose(first, true) })
				begun := time.Now()
				_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
				if took := time.Since(begun); err != nil || took != time.Second || engine.made != 2 {
					t.Errorf("after %v, in %d containers: %v", took, engine.made, err)
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
		engine.attach = func(_ string, conn attachStream) {
			switch died++; died {
			case 1:
				_, _ = conn.Write([]byte("OCI runtime exec failed: write init-p: broken pipe: unknown\r\n"))
				_ = conn.Close()
			case 2:
				_ = conn.Close()
			default:
				engine.obey(conn)
			}
		}
		engine.has("alice")
		e := engine.executor()
		e.Start(t.Context(), noProcesses{})
		defer e.Shutdown()
		if _, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || engine.made != 1 || died != 3 {
			t.Errorf("the %d. agent, in %d containers: %v", died, engine.made, err)
		}
	})
}

// One that is removed before it is started is lost, too.
func TestAContainerThatIsRemovedBeforeItStarts(t *testing.T) {
	for status, tries := range map[int]int{http.StatusConflict: containerTries, http.StatusNotFound: containerTries, http.StatusInternalServerError: 1} {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			engine.refuses = status
			e := engine.executor()
			e.Start(t.Context(), noProcesses{})
			defer e.Shutdown()
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			if engine.made != tries || errors.Is(err, errLost) != (tries > 1) || !strings.Contains(fmt.Sprint(err), "cannot start: ") {
				t.Errorf("%d: in %d containers: %v", status, engine.made, err)
			}
		})
	}
}

// A container that gVisor itself failed to start is made once more; one whose program cannot start is not.
func TestAStartThatGVisorFails(t *testing.T) {
	const eof = `OCI runtime start failed: starting container: starting root container: urpc method "containerManager.StartRoot" failed: EOF: unknown`
	for _, tt := range []struct {
		fails []string
		made  int
		works bool
	}{
		{[]string{eof}, 2, true},
		{[]string{eof, eof}, 2, false},
		{[]string{"cannot create sandbox: cannot read client sync file: waiting for sandbox to start: EOF"}, 2, true},
		{[]string{`urpc method "containerManager.StartRoot" failed: error finding executable "x" in PATH: no such file or directory`}, 1, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			engine := newScriptedEngine(t)
			engine.fails = tt.fails
			e := engine.executor()
			e.Start(t.Context(), noProcesses{})
			_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
			e.Shutdown()
			if engine.made != tt.made || (err == nil) != tt.works || len(engine.containers) > engine.made {
				t.Errorf("%q: in %d containers: %v", tt.fails, engine.made, err)
			}
			if !tt.works && (len(engine.containers) != 0 || engine.spools() != "" || !strings.Contains(err.Error(), "cannot start: ")) {
				t.Errorf("%q: left %v, %s: %v", tt.fails, engine.containers, engine.spools(), err)
			}
		})
	}
}

// Whatever happens is over in seconds, and nothing is left of what was tried.
func TestContainersThatDoNotBecomeReady(t *testing.T) {
	const refused = "OCI runtime exec failed: exec failed: cannot exec in a stopped container: unknown\r\n"
	says := func(conn attachStream) { _, _ = conn.Write([]byte(refused)); _ = conn.Close() }
	for _, tt := range []struct {
		name   string
		attach func(s *scriptedEngine, id string, conn attachStream)
		after  time.Duration
		made   int
		lost   bool
		want   string
	}{
		{"nobody answers", func(*scriptedEngine, string, attachStream) {}, session.HandshakeLimit + endingLag, 1, false, "the agent does not answer"},
		{"lost each time", func(s *scriptedEngine, id string, _ attachStream) { s.lose(id, true) }, 0, containerTries, true, "lost before the command began"},
		{"the engine's own error", func(_ *scriptedEngine, _ string, conn attachStream) { says(conn) }, endingLag, 1, false, `cannot start the agent: Docker says "OCI runtime exec failed`},
		{"the engine's own error, of what is gone", func(s *scriptedEngine, id string, conn attachStream) { s.lose(id, false); says(conn) }, 0, containerTries, true, "OCI runtime exec failed"},
		{"the engine's own error, and then the event", func(s *scriptedEngine, id string, conn attachStream) {
			says(conn)
			time.AfterFunc(time.Second, func() { s.lose(id, true) })
		}, containerTries * time.Second, containerTries, true, "OCI runtime exec failed"},
		{"the engine's own error, which does not know yet", func(s *scriptedEngine, _ string, conn attachStream) { s.pid = 1 << 30; says(conn) }, containerTries * endingLag, containerTries, true, "OCI runtime exec failed"},
		{"the engine's own error, and the stream stays open", func(_ *scriptedEngine, _ string, conn attachStream) { _, _ = conn.Write([]byte(refused)) }, time.Second + endingLag, 1, false, "OCI runtime exec failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine := newScriptedEngine(t)
				engine.attach = func(id string, conn attachStream) { tt.attach(engine, id, conn) }
				e := engine.executor()
				e.Start(t.Context(), noProcesses{})
				defer e.Shutdown()
				begun := time.Now()
				_, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard)
				if took := time.Since(begun); err == nil || took != tt.after || engine.made != tt.made || errors.Is(err, errLost) != tt.lost {
					t.Errorf("after %v, in %d containers: %v", took, engine.made, err)
				}
				if err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %s", err, tt.want)
				}
				synctest.Wait()
				if left := engine.spools(); left != "" || len(engine.containers) != 0 {
					t.Errorf("left: %v, %s", engine.containers, left)
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
		e.Start(t.Context(), noProcesses{})
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
		if _, err := e.Run(t.Context(), engine.spec("alice"), aCommand, discard); err != nil || engine.made != 1 {
			t.Errorf("in %d containers: %v", engine.made, err)
		}
	})
}

// A session that is known to be broken has not begun a command. One that breaks later may have.
func TestACommandBeginsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		e := engine.executor()
		e.Start(t.Context(), noProcesses{})
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
		engine.breaks = true
		e.mu.Unlock()
		if err := run(); !errors.Is(err, session.ErrBroken) || engine.made != 2 {
			t.Errorf("in %d containers: %v", engine.made, err)
		}
	})
}

// A container that runs without the service may end while it is made ready, as one of a call may. What it had is given back once.
func TestAContainerPersistentIsLostBeforeItIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newScriptedEngine(t)
		engine.attach, engine.unasked = func(id string, _ attachStream) { engine.lose(id, true) }, true
		e := engine.executor()
		e.Start(t.Context(), noProcesses{})
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
