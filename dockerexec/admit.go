package dockerexec

import (
	"context"
	"errors"

	"github.com/daycare-run/sandbox/internal/quota"
)

// admit waits for the turn of a container that is to be made, and takes a place for it. If there are too many
// containers, an idle one makes room. The error is a *quota.Exceeded, or why the container is no longer waited for.
// The turn lasts until done is called.
func (e *Executor) admit(c *container) (done func(), err error) {
	account := c.account()
	done, err = e.cfg.Quotas.SpareTurn(c.wanted, account, c.called)
	if err != nil {
		return nil, err
	}
	if c.give, err = e.place(c.wanted, account); err == nil {
		e.mu.Lock()
		err = context.Cause(c.wanted)
		c.begun = err == nil
		e.mu.Unlock()
	}
	if err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// place takes a place for one more container. A container that makes room is gone before its place is taken, so there
// are never more than allowed.
func (e *Executor) place(ctx context.Context, account quota.Account) (give func(), err error) {
	for {
		give, err = e.cfg.Quotas.Take(account, quota.Containers, 1)
		full, is := errors.AsType[*quota.Exceeded](err)
		if !is {
			return give, err
		}
		leaving := e.makeRoom(full)
		if leaving == nil {
			return nil, err
		}
		select {
		case <-leaving.gone:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// makeRoom returns a container that is being removed and that no other call waits for: one that is leaving anyway, or
// else the one idle for longest among those that the bound counts. It returns nil if all are in use.
func (e *Executor) makeRoom(full *quota.Exceeded) *container {
	e.mu.Lock()
	for c := range e.leaving {
		if c.begun && !c.claimed && full.IsAbout(c.account()) {
			c.claimed = true
			e.mu.Unlock()
			return c
		}
	}
	oldest := e.idlest(full)
	if oldest != nil {
		oldest.claimed = true
		e.drop(oldest)
	}
	e.mu.Unlock()
	if oldest != nil {
		e.tell(e.ctx, oldest, Incident{What: "removing container: idle, and another one takes its place", Quota: full.Setting})
		e.discard(oldest)
	}
	return oldest
}

// idlest returns the container that has been idle for longest. If the total is full, it returns a pooled one, or one
// of the user with the most containers. e.mu is held.
func (e *Executor) idlest(full *quota.Exceeded) (oldest *container) {
	has := map[string]int{}
	for _, c := range e.containers {
		if full.Scope == quota.Total {
			has[c.spec.User]++
		}
	}
	for _, c := range e.containers {
		if !c.isSettled() || c.users > 0 || !full.IsAbout(c.account()) {
			continue
		}
		if full.Scope == quota.Total && c.spec.IsPooled() {
			return c // it has no user yet
		}
		if oldest == nil || has[c.spec.User] > has[oldest.spec.User] ||
			has[c.spec.User] == has[oldest.spec.User] && c.lastUsed.Before(oldest.lastUsed) {
			oldest = c
		}
	}
	return oldest
}

func (c *container) account() quota.Account { return quota.Account{User: c.spec.User, Token: c.token} }

// finishRemoval records that nothing is left of a container that was taken out of the map.
func (e *Executor) finishRemoval(c *container) {
	e.mu.Lock()
	delete(e.leaving, c)
	e.publish(c, "removed")
	e.mu.Unlock()
	if c.give != nil {
		c.give()
	}
	c.unwanted(nil) // or Executor.ctx would keep it
	close(c.gone)
}
