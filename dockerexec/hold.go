package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/daycare-run/sandbox/internal/engine"
)

// holdFunc is the type of hold and holdUnused.
type holdFunc func(ctx context.Context, eng engine.Engine, id string) (resume func() error, err error)

// hold pauses a container until all that hold it have called resume. It waits while the container is used, and while
// it rests. A container that does not run needs no pause.
func (p *pauses) hold(ctx context.Context, eng engine.Engine, id string) (resume func() error, err error) {
	return p.holdIf(ctx, eng, id, func(c *pausing) (bool, error) { return c.users == 0 && !c.rests, nil })
}

// holdUnused is hold for a user of another container. It waits for no container's users: if there are any, resume is nil.
func (p *pauses) holdUnused(ctx context.Context, eng engine.Engine, id string) (resume func() error, err error) {
	resume, err = p.holdIf(ctx, eng, id, func(c *pausing) (bool, error) {
		if c.users > 0 {
			return false, errUsed
		}
		return c.holders > 0 || !c.rests, nil // who holds it may wait for the other container
	})
	if errors.Is(err, errUsed) {
		return nil, nil
	}
	return resume, err
}

var errUsed = errors.New("the container is used")

func (p *pauses) holdIf(ctx context.Context, eng engine.Engine, id string, may func(*pausing) (bool, error)) (resume func() error, err error) {
	c, err := p.enter(ctx, id, func(c *pausing) *int { return &c.holders }, may)
	if err != nil {
		return nil, err
	}
	c.call <- struct{}{}
	err = p.have(ctx, eng, id, c)
	<-c.call
	resume = sync.OnceValue(func() error { return p.resume(ctx, eng, id, c, err != nil) })
	if err != nil {
		_ = resume()                                                        // Docker may still pause it
		return nil, fmt.Errorf("cannot pause container %.12s: %v", id, err) // its class would be taken for that of the other container
	}
	return resume, nil
}
