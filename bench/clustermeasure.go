package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// clustered has the measurements of several hosts.
type clustered struct {
	// held is an exec at the host that holds the user, forwarded the same exec at another host, and
	// alone at a service without cluster; the overheads are their times less the exec's own time.
	held, forwarded, alone, heldOverhead, forwardedOverhead, aloneOverhead sample
	// first is a new user's PUT: the claim of a seat, and the record. many is the time of manyUsers
	// PUTs, clusterAtOnce at once.
	first, many sample
	// answered is the time from a host's loss until another host answers a call of its user.
	answered sample
}

// manyUsers come clusterAtOnce at a time; a host is lost losses times.
const manyUsers, clusterAtOnce, losses = 1000, 32, 5

// measureCluster measures three hosts beside a single service.
func (l *lab) measureCluster(ctx context.Context, runtime string, found *clustered) error {
	return l.withService(ctx, runtime, "cluster-off", []string{"SANDBOXD_POOL_SIZE=0"}, func(alone *service) error {
		return l.withCluster(ctx, runtime, func(c *clusterLab) error {
			for _, step := range []struct {
				name string
				run  func() error
			}{
				{"calls that are sent on", func() error { return c.measureForwarding(ctx, alone, found) }},
				{"claims", func() error { return c.measureClaims(ctx, found) }},
				{"hosts that are lost", func() error { return c.measureLosses(ctx, found) }},
			} {
				l.say("%s: %s", runtime, step.name)
				if err := step.run(); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// holder finds the host that has a user's container. After a loss the other hosts may not yet have
// found the returned one.
func (c *clusterLab) holder(ctx context.Context, user string) (holder, other *clusterHost, err error) {
	for range 100 {
		for i, h := range c.hosts {
			list, err := h.api.Containers(ctx)
			if err == nil && slices.ContainsFunc(list, func(one types.Container) bool { return one.UserID == user && (one.Node == "" || one.Node == h.name) }) {
				return h, c.hosts[(i+1)%len(c.hosts)], nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, nil, fmt.Errorf("no host has a container of %s", user)
}

// measureForwarding takes turns in rows.
func (c *clusterLab) measureForwarding(ctx context.Context, alone *service, found *clustered) error {
	if err := c.hosts[0].register(ctx, boxID); err != nil {
		return err
	}
	if _, err := c.hosts[0].exec(ctx, boxID, "true"); err != nil {
		return err
	}
	holder, other, err := c.holder(ctx, boxID)
	if err != nil {
		return err
	}
	for turn := -1; len(found.held) < 20*c.settings.warm; turn++ {
		into := found
		if turn < 0 {
			into = &clustered{}
		}
		ways := []struct {
			whole, overhead *sample
			of              *service
		}{{&into.held, &into.heldOverhead, holder.service}, {&into.forwarded, &into.forwardedOverhead, other.service}, {&into.alone, &into.aloneOverhead, alone}}
		for i := range ways {
			way := ways[(max(turn, 0)+i)%len(ways)] // every way follows every other, because a rested container is slower
			for range rowLength {
				whole, overhead, err := timed(ctx, way.of.api)
				if err := errors.Join(way.whole.add(whole, err), way.overhead.add(overhead, err)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// measureClaims has users come one at a time, and then many.
func (c *clusterLab) measureClaims(ctx context.Context, found *clustered) error {
	for i := range c.settings.warm {
		begun := time.Now()
		err := c.hosts[i%len(c.hosts)].register(ctx, fmt.Sprint("one-", i))
		if err := found.first.add(time.Since(begun), err); err != nil {
			return err
		}
	}
	turns, faults := make(chan struct{}, clusterAtOnce), make(chan error, manyUsers)
	var coming sync.WaitGroup
	begun := time.Now()
	for i := range manyUsers {
		turns <- struct{}{}
		coming.Go(func() {
			defer func() { <-turns }()
			faults <- c.hosts[i%len(c.hosts)].register(ctx, fmt.Sprint("many-", i))
		})
	}
	coming.Wait()
	took := time.Since(begun)
	close(faults)
	var all error
	for err := range faults {
		all = errors.Join(all, err)
	}
	return found.many.add(took, all)
}

// measureLosses repeatedly loses the host that holds a user, and starts it again.
func (c *clusterLab) measureLosses(ctx context.Context, found *clustered) error {
	for range losses {
		holder, other, err := c.holder(ctx, boxID)
		if err != nil {
			return err
		}
		begun := time.Now()
		holder.lose()
		err = c.answers(ctx, other)
		if err := found.answered.add(time.Since(begun), err); err != nil {
			return err
		}
		if err := errors.Join(holder.start(ctx), c.together(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// answers waits until a host runs a command of a user that another host held.
func (c *clusterLab) answers(ctx context.Context, h *clusterHost) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := h.exec(ctx, boxID, "true")
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the user of a lost host gets no answer: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
