package dockerexec

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/pathmap"
)

// What programs change in one container is heard in the user's other ones, under gVisor as well:
// while somebody watches files in one of several containers, the directories that it can write to
// are followed on the host. That begins while another container starts. Whose change it was is not
// known there: the agents leave out what was made in their own containers.

const (
	// sharedLook is how often it is looked who has several containers, besides when there is one
	// more, and watchedLook how often it is asked whether somebody watches. Where nobody does it is
	// asked ever more seldom.
	sharedLook   = 2 * time.Second
	watchedLook  = 10 * time.Second
	watchedFirst = time.Second
	watchedLast  = 30 * time.Second
)

// relayChanges has each user's containers hear of each other's changes.
func (e *Executor) relayChanges() {
	follows := map[string]bool{}
	over := make(chan string)
	look := time.NewTicker(sharedLook)
	defer look.Stop()
	for {
		select {
		case <-e.ctx.Done():
			for range follows {
				<-over
			}
			return
		case user := <-over:
			delete(follows, user)
			continue
		case <-look.C:
		case <-e.moreOfOne:
		}
		for _, user := range e.withSeveral() {
			if !follows[user] && len(e.listeners(user)) > 0 {
				follows[user] = true
				go func() {
					e.relayChangesOf(user)
					over <- user
				}()
			}
		}
	}
}

func (e *Executor) withSeveral() (users []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for user := range e.several {
		users = append(users, user)
	}
	return users
}

// listeners returns the containers in which somebody may watch files that another container of the
// user can change. One that is frozen can as soon as it is thawed.
func (e *Executor) listeners(user string) (list []*Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := 0
	for c := range e.users[user] {
		if c.is(inUse...) {
			all++
		}
		if c.mayWatch() {
			list = append(list, c)
		}
	}
	if all < 2 {
		return nil
	}
	slices.SortFunc(list, func(a, b *Container) int { return strings.Compare(a.ID(), b.ID()) })
	return list
}

// relayChangesOf does it for one user, while there are listeners.
func (e *Executor) relayChangesOf(user string) {
	var may, watched []*Container
	var follows []string
	stop := func() {}
	defer func() { stop() }()
	for wait := watchedFirst; ; {
		now := e.listeners(user)
		if len(now) == 0 {
			return
		}
		if !slices.Equal(now, may) {
			may, wait = slices.Clone(now), watchedFirst
		}
		watched = slices.DeleteFunc(now, func(c *Container) bool {
			return !e.isWatched(c, slices.Contains(watched, c))
		})
		if dirs := writableDirs(watched); !slices.Equal(dirs, follows) {
			stop()
			follows, stop = dirs, e.followFor(user, watched, dirs)
		}
		if len(watched) > 0 {
			wait = watchedLook
		}
		select {
		case <-e.ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, watchedLast)
	}
}

// isWatched asks whether somebody watches files in a container. Of one that does not answer it is
// taken to be as it was.
func (e *Executor) isWatched(c *Container, was bool) bool {
	ctx, cancel := context.WithTimeout(e.ctx, renamesLimit)
	defer cancel()
	answer, err := e.askRename(ctx, c, wire.Rename{})
	if err != nil {
		return was
	}
	return answer.Watched
}

// writableDirs returns what of the host containers can write to, without what is below another
// directory.
func writableDirs(list []*Container) (dirs []string) {
	for _, c := range list {
		for _, m := range c.spec.Mounts {
			if !m.ReadOnly {
				dirs = append(dirs, m.Source)
			}
		}
	}
	slices.Sort(dirs)
	dirs = slices.Compact(dirs)
	return slices.DeleteFunc(slices.Clone(dirs), func(dir string) bool {
		return slices.ContainsFunc(dirs, func(above string) bool {
			return above != dir && pathmap.Within(dir, above)
		})
	})
}

// followFor follows directories that containers of a user can write to, and has those told in which
// somebody may watch, until stop returns.
func (e *Executor) followFor(user string, watched []*Container, dirs []string) (stop func()) {
	if len(watched) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(e.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.cfg.Mounts.Follow(ctx, watched[0].spec, dirs, func(news News) {
			for _, c := range e.listeners(user) {
				e.tellOthers(c, news)
			}
		})
	}()
	return func() { cancel(); <-done }
}

// tellOthers has a container told what others may have changed, where it sees that.
func (e *Executor) tellOthers(c *Container, news News) {
	var there News
	news.Each(func(host string, modified, dir bool) {
		for _, place := range c.spec.WritablePlaces(host, "") {
			there.put(place, modified, dir)
		}
	})
	if there.IsEmpty() {
		return
	}
	e.mu.Lock()
	if c.hears.others.IsEmpty() {
		c.hears.others = there
	} else {
		there.Each(c.hears.others.put)
	}
	e.mu.Unlock()
	e.lookUpSoon(c)
}
