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

// share is a class, and a token that gets containers of it.
type share struct{ class, caller string }

// taking is what a token got of a class.
type taking struct {
	last  time.Time // when it got a container
	begun int       // how many of its calls are getting one, and may have the last
}

// keptFor is how long a token that got a container of a class leaves the last one to others.
const keptFor = 10 * time.Second

// beginTaking begins to get a container of a class for a token's call, until endTaking. It returns
// how many the call must leave to others that come for the class. Otherwise, a token that makes and
// ends sandboxes again and again, or many at once, would get each container as soon as it waits.
func (p *Pool) beginTaking(h share) (leave int) {
	others := p.classes.hasOther(h)
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.taken, func(_ share, t taking) bool {
		return t.begun == 0 && time.Since(t.last) > keptFor
	})
	t, had := p.taken[h]
	if had && others {
		return 1 + t.begun // beside the last one, what those calls may still get
	}
	t.begun++
	p.taken[h] = t
	return 0
}

// endTaking ends what beginTaking began; p.mu is held.
func (p *Pool) endTaking(h share, leave int, hit bool) {
	t := p.taken[h]
	if leave == 0 {
		t.begun--
	}
	if hit {
		t.last = time.Now()
	}
	p.taken[h] = t
}
