package sandbox

import (
	"context"
	"maps"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
)

// Review has the pool look whether its containers are still what new ones would be.
func (p *Pool) Review() {
	if p != nil { // there may be none yet
		p.review.Store(true)
		p.wakeUp()
	}
}

// revise looks, once after Review, what sandboxes that last are made from by now. A class whose image is another one has that
// from now on, and one of which none are made any more is forgotten. What waits for what was goes, as Trim has it.
func (p *Pool) revise(ctx context.Context) {
	if !p.review.Swap(false) {
		return
	}
	for key, class := range p.classes.lasting() {
		now, err := p.resolver.keyNow(ctx, class)
		switch {
		case !p.cfg.Load().has(class.Shape), cerrdefs.IsFailedPrecondition(err), cerrdefs.IsInvalidArgument(err): // as of an image that is gone
			p.classes.drop(key)
		case err != nil: // Docker may be away
			p.review.Store(true)
		case now != key:
			p.classes.rekey(key, now)
		}
	}
}

// has reports whether sandboxes that last are made of such a shape.
func (c *PoolConfig) has(shape lastingShape) bool {
	return slices.ContainsFunc(c.Lasting, func(l Lasting) bool { return l.shape() == shape })
}

// share is a class, and a token that has had one of it.
type share struct{ class, caller string }

// keptFor is how long a token that has had one of a class leaves the last one to others.
const keptFor = 10 * time.Second

// toLeave is how many containers of a class a token has to leave to others that come for it. A token that makes sandboxes and
// ends them again and again would else have each one as soon as it waits.
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
