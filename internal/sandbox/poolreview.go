package sandbox

import (
	"context"
	"maps"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/plan"
)

// Review makes the pool check whether its containers are still what new ones would be.
func (p *Pool) Review() {
	p.review.Store(true)
	p.wakeUp()
}

// revise checks, once after Review, what persistent sandboxes are made from now. A class whose
// image is now another one gets a new key, and a class of which no more are made is forgotten. Trim
// removes the containers that waited for the old ones.
func (p *Pool) revise(ctx context.Context) {
	if !p.review.Swap(false) {
		return
	}
	for _, class := range p.classes.all() {
		if !class.Persistent {
			continue
		}
		now, err := p.keyNow(ctx, class.poolClass)
		switch {
		case !p.cfg.Load().has(class.Shape), cerrdefs.IsFailedPrecondition(err), cerrdefs.IsInvalidArgument(err): // e.g. no such image
			p.classes.drop(class.key)
		case err != nil: // Docker may be away
			p.review.Store(true)
		case now != class.key:
			p.classes.rekey(class.key, now)
		}
	}
}

// has reports whether persistent sandboxes are made in this shape.
func (c *PoolConfig) has(shape plan.Shape) bool {
	return slices.ContainsFunc(c.Persistent, func(l plan.Persistent) bool {
		return l.Shape() == shape
	})
}

// share is a class, and a token that got a container of it.
type share struct{ class, caller string }

// keptFor is how long a token that got a container of a class leaves the last one to others.
const keptFor = 10 * time.Second

// toLeave returns how many containers of a class a token must leave to others that come for it.
// Otherwise, a token that makes and ends sandboxes again and again would get each container as soon
// as it waits.
func (p *Pool) toLeave(h share) int {
	p.mu.Lock()
	maps.DeleteFunc(p.taken, func(_ share, at time.Time) bool { return time.Since(at) > keptFor })
	_, had := p.taken[h]
	p.mu.Unlock()
	if had && p.classes.hasOther(h) {
		return 1
	}
	return 0
}
