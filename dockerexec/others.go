package dockerexec

import (
	"context"
	"maps"
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
	// sharedLook is how often it is looked who has several containers.
	sharedLook = 2 * time.Second
	// It is asked whether somebody watches: every watchedLook at most while somebody does or calls
	// begin, and otherwise after watchedFirst and then ever more seldom, up to watchedLast.
	watchedLook  = 10 * time.Second
	watchedFirst = time.Second
	watchedLast  = 5 * time.Minute
)

// relayChanges has each user's containers hear of each other's changes.
func (e *Executor) relayChanges() {
	follows := map[string]chan struct{}{} // each holds one when a call or a container has begun
	over := make(chan string)
	look := time.NewTicker(sharedLook)
	defer look.Stop()
	for {
		var users []string
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
			users = e.withSeveral()
		case <-e.anyActive:
			users = e.takeActive()
			for _, user := range users {
				select {
				case follows[user] <- struct{}{}:
				default:
				}
			}
		}
		for _, user := range users {
			if follows[user] == nil && len(e.listeners(user)) > 0 {
				begun := make(chan struct{}, 1)
				follows[user] = begun
				go func() {
					e.relayChangesOf(user, begun)
					over <- user
				}()
			}
		}
	}
}

// begins notes that a call or a container of a user begins, whose programs may change what others of
// the user's watch. e.mu is held.
func (e *Executor) begins(user string) {
	if e.several[user] && !e.active[user] {
		e.active[user] = true
		select {
		case e.anyActive <- struct{}{}:
		default:
		}
	}
}

func (e *Executor) takeActive() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer clear(e.active)
	return slices.Collect(maps.Keys(e.active))
}

func (e *Executor) withSeveral() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.several))
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

// anotherRuns reports whether programs run in another container of a user.
func (e *Executor) anotherRuns(user string, than *Container) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.users[user] {
		if c != than && c.runsPrograms() {
			return true
		}
	}
	return false
}

// relayChangesOf does it for one user, while there are listeners.
func (e *Executor) relayChangesOf(user string, begun <-chan struct{}) {
	var may, watched []*Container
	var follows []string
	stop := func() {}
	defer func() { stop() }()
	wait, someBegun := watchedFirst, true
	for e.ctx.Err() == nil {
		now := e.listeners(user)
		if len(now) == 0 {
			return
		}
		if !slices.Equal(now, may) {
			may, wait, someBegun = slices.Clone(now), watchedFirst, true
		}
		watched = slices.DeleteFunc(now, func(c *Container) bool {
			was := slices.Contains(watched, c)
			if !someBegun && !e.anotherRuns(user, c) {
				return !was // nobody else changes anything
			}
			return !e.isWatched(c, was)
		})
		if dirs := writableDirs(watched); !slices.Equal(dirs, follows) {
			stop()
			follows, stop = dirs, e.followFor(user, watched, dirs)
		}
		if len(watched) > 0 {
			wait = watchedLook
		}
		someBegun = e.await(wait, begun)
		if wait = min(2*wait, watchedLast); someBegun {
			wait = min(wait, watchedLook)
		}
	}
}

// await waits for so long or, once something has begun, for watchedLook at most. It reports whether
// that is so.
func (e *Executor) await(wait time.Duration, begun <-chan struct{}) (someBegun bool) {
	since, timer := time.Now(), time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return someBegun
		case <-timer.C:
			return someBegun
		case <-begun:
			someBegun = true
			timer.Reset(min(time.Until(since.Add(wait)), time.Until(since.Add(watchedLook))))
		}
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
