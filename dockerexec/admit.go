package dockerexec

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/quota"
)

// admit waits for the turn of a container that is to be made, and takes a place for it. If there
// are too many containers, an idle one makes room. The error is a *quota.Exceeded, or why the
// container is no longer waited for. The turn lasts until done is called.
func (w *warm) admit(c *container) (done func(), err error) {
	account := c.account()
	done, err = w.cfg.Quotas.SpareTurn(c.Making(), account, c.Wanted())
	if err != nil {
		return nil, err
	}
	give, err := w.place(c.Making(), account)
	w.mu.Lock()
	c.give = give
	w.mu.Unlock()
	if err == nil && c.Do(life.Begin, nil) == life.Refused {
		err = context.Cause(c.Making())
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// place takes a place for one more container. A container that makes room is gone before its place
// is taken, so there are never more than allowed.
func (w *warm) place(ctx context.Context, account quota.Account) (give func(), err error) {
	for {
		give, err = w.cfg.Quotas.Take(account, quota.Containers, 1)
		full, is := errors.AsType[*quota.Exceeded](err)
		if !is {
			return give, err
		}
		leaving := w.makeRoom(full)
		if leaving == nil {
			return nil, err
		}
		select {
		case <-leaving.Gone():
		case <-time.After(removalLimit): // Docker does not remove it: another one then
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// makeRoom returns a container that is being removed and that no other call waits for: one that is
// leaving anyway, or else the one idle for longest among those that the bound counts. It returns
// nil if all are in use.
func (w *warm) makeRoom(full *quota.Exceeded) *container {
	w.mu.Lock()
	for c := range w.all {
		if c.is(life.Leaving) && c.give != nil && !c.claimed && full.IsAbout(c.account()) {
			c.claimed = true
			w.mu.Unlock()
			return c
		}
	}
	oldest := w.idlest(full)
	if oldest != nil {
		oldest.claimed = true
	}
	w.mu.Unlock()
	if oldest != nil {
		w.tell(w.ctx, oldest,
			Incident{What: "removing container: idle, and another one takes its place",
				Quota: full.Setting})
		w.removeLater(oldest)
	}
	return oldest
}

// idlest evicts the container that has been idle for longest. If the total is full, it is a pooled
// one, or one of the user with the most containers. e.mu is held.
func (w *warm) idlest(full *quota.Exceeded) *container {
	has := map[string]int{}
	var idle []*container
	used := map[*container]time.Time{}
	for _, c := range w.calls {
		if full.Scope == quota.Total {
			has[c.spec.User]++
		}
		if now := c.Now(); (now.State == life.Ready || now.State == life.Frozen) &&
			now.Calls == 0 && full.IsAbout(c.account()) {
			idle = append(idle, c)
			used[c] = now.LastUsed
		}
	}
	slices.SortFunc(idle, func(a, b *container) int {
		if full.Scope == quota.Total && a.spec.IsPooled() != b.spec.IsPooled() {
			if a.spec.IsPooled() { // it has no user yet
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(has[b.spec.User], has[a.spec.User]), used[a].Compare(used[b]))
	})
	for _, c := range idle {
		if c.Do(life.Evict, nil) == life.Removes {
			return c
		}
	}
	return nil
}

func (c *container) account() quota.Account {
	return quota.Account{User: c.spec.User, Token: c.token}
}
