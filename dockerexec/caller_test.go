package dockerexec

import (
	"context"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/quota"
)

// joined has a call join the container of a Spec, which is made if need be, and waits until it is
// settled. The call returns at once.
func (e *Executor) joined(ctx context.Context, spec Spec) (*Container, error) {
	c, added, err := e.Add(spec, spec.Platform, quota.Token{})
	if err != nil {
		return nil, err
	}
	from, thawing, err := c.Join(1)
	if err != nil {
		return nil, err
	}
	if added {
		go e.Make(ctx, c)
	}
	e.Thaw(c, from, thawing)
	<-c.Settled()
	if c.Do(life.Return, nil) == life.Removes {
		e.RemoveLater(c)
	}
	if now := c.Now(); now.State > life.Frozen {
		return nil, now.Why
	}
	return c, nil
}

// run has a call run a command in the container of a Spec.
func (e *Executor) run(ctx context.Context, spec Spec) error {
	c, err := e.joined(ctx, spec)
	if err != nil {
		return err
	}
	_, err = c.Session().Run(ctx, session.Command{
		Command: launch.Command{Shell: "x"}, Timeout: time.Hour, Grace: 2 * time.Second,
	}, func(session.Stream, []byte) error { return nil })
	return err
}

// list are the containers for calls that are there.
func (e *Executor) list() (list []*Container) {
	for _, c := range e.ForCalls() {
		if c.Now().State < life.Ended {
			list = append(list, c)
		}
	}
	return list
}

// A start that pauses writers neither waits for frozen ones nor wakes them.
func TestAFrozenWriterIsHeld(t *testing.T) {
	engine := newScriptedEngine(t)
	e := engine.executor()
	defer e.Shutdown()
	c, err := e.joined(t.Context(), engine.spec("alice"))
	if err != nil || !e.Freeze(c) {
		t.Fatalf("it is not frozen: %v", err)
	}
	resume, err := c.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := resume(); err != nil || len(engine.pauses()) != 1 {
		t.Errorf("%v: %v", engine.pauses(), err)
	}
}
