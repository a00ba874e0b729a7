package dockerexec

import (
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/internal/agent/agenttest"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A pooled container is ready once its agent has said that a shell waits, or that none can, and is removed if that is
// not said. Others are not asked, nor is any if no shell is to wait.
func TestOnlyPooledContainersHaveAShellWait(t *testing.T) {
	for name, tt := range map[string]struct{ pooled, ahead, says bool }{
		"of the pool": {true, true, true}, "of the pool, and nothing is said": {true, true, false}, "of the pool, with none to wait": {true, false, false},
		"made for a sandbox": {false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine, asked := newScriptedEngine(t), make(chan control.Verb, 1)
				engine.Serve(func(p enginetest.Program) {
					agenttest.Requests(p, func(r control.Request) *control.Answer {
						asked <- r.Do
						if !tt.says {
							return nil
						}
						return &control.Answer{Fault: control.FaultMissing} // as of an older one
					})
				})
				e := engine.executor()
				e.SetAhead(tt.ahead)
				defer e.Shutdown()
				spec := engine.spec("alice")
				if tt.pooled {
					spec.User = PoolUser("x")
				}
				spec.Persistent = spec.User
				_, err := e.StartPersistent(t.Context(), spec, quota.Token{})
				is := tt.pooled && tt.ahead
				if (err == nil) != (tt.says || !is) {
					t.Errorf("%v", err)
				}
				if (len(asked) == 1) != is || is && <-asked != control.Ready {
					t.Error("the agent was asked for something else")
				}
			})
		})
	}
}
