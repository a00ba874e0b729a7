package member

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/cluster"
)

// drainLimit is how long busy users may stay on a host that is being drained.
const drainLimit = 10 * time.Minute

const (
	// tendEvery is the pause between looks at the users.
	tendEvery = 500 * time.Millisecond
	// givenAtOnce is how many users are given up at a time.
	givenAtOnce = 8
)

// tendUsers finds a host for each user for whom something is due: a process that has to run, or a
// sandbox whose deadline has come. Beside that it gives users up,
// for which their calls have to end.
func (m *Member) tendUsers(ctx context.Context) {
	defer inBackground(ctx, m.dropEnded)()
	defer inBackground(ctx, m.handOver)()
	for ; ctx.Err() == nil; cluster.Wait(ctx, tendEvery) {
		for _, user := range m.unheld() {
			if ctx.Err() == nil {
				_, _ = m.cluster.Hold(ctx, user) // the next round tries again
			}
		}
	}
}

// unheld returns users and sandboxes that have something to run or whose deadline has passed, and
// whose seat no host holds.
func (m *Member) unheld() []string {
	var due []string
	for _, w := range m.workloads {
		due = append(due, w.Due()...)
	}
	return slices.DeleteFunc(due, func(user string) bool {
		_, held := m.cluster.Seat(user)
		return held
	})
}

// handOver hands over this host's users while it is drained, until ctx ends.
func (m *Member) handOver(ctx context.Context) {
	var drained time.Time
	var turns errgroup.Group
	turns.SetLimit(givenAtOnce)
	defer func() { _ = turns.Wait() }()
	for ; ctx.Err() == nil; cluster.Wait(ctx, tendEvery) {
		own, _ := m.cluster.Node(m.cluster.Host())
		if !own.Draining || m.fence.Left() <= 0 || m.settings.Homes == "local" {
			drained = time.Time{}
			continue
		}
		if drained.IsZero() {
			drained = time.Now()
		}
		m.drain(ctx, &turns, time.Since(drained) > drainLimit)
	}
}

// drain hands over the users who are idle when their turn comes, or all users. It returns when the
// last turn has come.
func (m *Member) drain(ctx context.Context, turns *errgroup.Group, all bool) {
	if !slices.ContainsFunc(m.cluster.Nodes(), func(n cluster.Node) bool { return !n.Draining }) {
		return // no host would take them
	}
	for _, seat := range m.cluster.Seated() {
		if ctx.Err() != nil {
			return
		}
		turns.Go(func() error {
			own, _ := m.cluster.Node(m.cluster.Host())
			if !own.Draining || ctx.Err() != nil { // it is drained no more, or the service ends
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			if err := m.router.HandOver(ctx, seat.User, all); err != nil {
				m.log.Warn().Err(err).Str("user", seat.User).
					Msg("cannot give a user to another host yet")
			}
			return nil
		})
	}
}

// dropEnded gives up the seats of sandboxes that no longer exist, until ctx ends.
func (m *Member) dropEnded(ctx context.Context) {
	var turns errgroup.Group
	turns.SetLimit(givenAtOnce)
	defer func() { _ = turns.Wait() }()
	for ; ctx.Err() == nil; cluster.Wait(ctx, tendEvery) {
		m.parts.Persistent.Leave(turns.Go, func(id string) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			err := m.router.Drop(ctx, id, func() bool { return m.parts.Registry.HasUser(id) })
			if err != nil {
				return err
			}
			if m.cluster.Holds(id) {
				return errors.New("it is being handed over") // which may yet fail
			}
			return nil
		})
	}
}
