package warm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/quota"
)

// make makes a container when its turn has come. ctx has the log of the call that it is for.
func (r *Runner) make(ctx context.Context, c *dockerexec.Container) {
	done, err := r.admit(c)
	if err != nil {
		r.executor.Abandon(c, fmt.Errorf(
			"cannot prepare a container for user %q: %w", c.Spec().User, err))
		return
	}
	defer done()
	r.executor.Make(ctx, c)
}

// admit waits for the turn of a container that is to be made, and takes a place for it. If there
// are too many containers, an idle one makes room. The error is a *quota.Exceeded, or why the
// container is no longer waited for. The turn lasts until done is called.
func (r *Runner) admit(c *dockerexec.Container) (done func(), err error) {
	account := c.Account()
	done, err = r.cfg.Quotas.SpareTurn(c.Making(), account, c.Wanted())
	if err != nil {
		return nil, err
	}
	give, err := r.TakePlace(c.Making(), account)
	if err != nil {
		done()
		return nil, err
	}
	c.SetPlace(give)
	return done, nil
}

// TakePlace takes a place for one more container, for calls or of a persistent sandbox, until give
// is called. If there are too many, an idle one for calls makes room. It is gone before its place
// is taken, so there are never more than allowed. The error is a *quota.Exceeded, or ctx's cause.
func (r *Runner) TakePlace(ctx context.Context, account quota.Account) (give func(), err error) {
	for {
		give, err = r.cfg.Quotas.Take(account, quota.Containers, 1)
		full, is := errors.AsType[*quota.Exceeded](err)
		if !is {
			return give, err
		}
		leaving := r.makeRoom(full)
		if leaving == nil {
			return nil, err
		}
		select {
		case <-leaving.Gone():
		case <-time.After(dockerexec.RemovalLimit): // Docker does not remove it: another one then
		case <-ctx.Done():
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.claimed, leaving) // another one may have its place
			return nil, context.Cause(ctx)
		}
	}
}

// makeRoom returns a container that is being removed and that no other call waits for: one that is
// leaving anyway, or else the one idle for longest among those that the bound counts. It returns
// nil if all are in use.
func (r *Runner) makeRoom(full *quota.Exceeded) *dockerexec.Container {
	c, evicted := r.claim(full)
	if evicted {
		r.executor.Tell(context.Background(), c, dockerexec.Incident{
			What: "removing container: idle, and another one takes its place", Quota: full.Setting})
		r.executor.RemoveLater(c)
	}
	return c
}

// claim is makeRoom without the removal of a container that it evicts.
func (r *Runner) claim(full *quota.Exceeded) (c *dockerexec.Container, evicted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.claimed, func(c *dockerexec.Container, _ bool) bool {
		return c.Now().State == life.Gone
	})
	all := r.executor.ForCalls()
	for _, c := range all {
		if c.Now().State == life.Leaving && c.HasPlace() && !r.claimed[c] &&
			full.IsAbout(c.Account()) {
			r.claimed[c] = true
			return c, false
		}
	}
	if c = idlest(all, full); c != nil {
		r.claimed[c] = true
	}
	return c, c != nil
}

// idlest evicts the container that has been idle for longest; nil if none is idle. If the total is
// full, it is a pooled one, or one of the user with the most containers.
func idlest(all []*dockerexec.Container, full *quota.Exceeded) *dockerexec.Container {
	total, has := full.Scope == quota.Total, map[string]int{}
	for _, c := range all {
		if total {
			has[c.Spec().User]++
		}
	}
	for _, c := range idle(all, func(a, b *dockerexec.Container) int {
		if pooled := a.Spec().IsPooled(); total && pooled != b.Spec().IsPooled() {
			if pooled { // it has no user yet
				return -1
			}
			return 1
		}
		return cmp.Compare(has[b.Spec().User], has[a.Spec().User])
	}) {
		if full.IsAbout(c.Account()) && c.Do(life.Evict, nil) == life.Removes {
			return c
		}
	}
	return nil
}
