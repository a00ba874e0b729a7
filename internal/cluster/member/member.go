// Package member is this host's service as a member of a cluster: it lets the records of sandboxes,
// processes and persistent sandboxes go to all hosts, takes users over and gives them up, and
// follows the fence.
//
// A Membership is what the service's parts are made with: the lease, the seats and the shared
// records. A Member begins with those parts, and runs. membership.go has the first, member.go the
// second; records.go has the shared records, persistent.go those that are sealed, users.go finds
// hosts for users, fence.go follows leases and lost hosts, same.go compares settings.
package member

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	dockertypes "github.com/docker/docker/api/types"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// Parts are the parts of the service that a Member drives. All must be set.
type Parts struct {
	Docker interface {
		Ping(context.Context) (dockertypes.Ping, error)
	}
	Executor   *dockerexec.Executor
	Registry   *registry.Registry
	Processes  *process.Manager
	Persistent *persistent.Sandboxes
}

// Member is this host in its cluster. It is safe for concurrent use.
type Member struct {
	*Membership
	parts     Parts
	workloads []workload
	router    *forward.Router
	stop      func() // ends what start began; a function, because it closes over that

	joins joins
}

// firstLimit is how long Start waits for etcd.
const firstLimit = 5 * time.Second

// Start takes part in the cluster until Shutdown is called. It returns when everything that the
// cluster has recorded is known here, or when that takes too long.
func (m *Membership) Start(ctx context.Context, parts Parts) *Member {
	s := newMember(m, parts)
	s.router = forward.New(forward.Config{Cluster: m.cluster, Local: s, Certificates: m.certs,
		Log: m.log})
	s.start(ctx)
	return s
}

func newMember(m *Membership, parts Parts) *Member {
	return &Member{Membership: m, parts: parts,
		workloads: []workload{parts.Processes, parts.Persistent}}
}

func (m *Member) start(ctx context.Context) {
	m.cluster.Keep("sandboxes", func(id string, text []byte, revision int64) {
		if err := m.parts.Registry.Apply(id, text, revision); err != nil {
			m.log.Error().Err(err).Msg("cannot use the shared record of a sandbox")
		}
	})
	m.cluster.Keep("processes", m.parts.Processes.Apply)
	m.cluster.Keep(forward.Persistent, m.applyPersistent)
	first := make(chan struct{})
	ends := []func(){inBackground(ctx, func(ctx context.Context) { m.cluster.Run(ctx, first) })}
	select {
	case <-first:
	case <-ctx.Done():
	case <-time.After(firstLimit):
		m.log.Warn().Msg("etcd does not answer yet: nothing is known of users until it does")
	}
	for _, run := range []func(context.Context){m.router.Run, m.tendUsers, m.watchEngine, m.fenceLost, m.followFence} {
		ends = append(ends, inBackground(ctx, run))
	}
	m.stop = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
}

// Shutdown ends this host's part in the cluster; what runs for users goes on. It waits for the end
// of what it does.
func (m *Member) Shutdown() { m.stop() }

// Router returns what decides where calls are answered.
func (m *Member) Router() *forward.Router { return m.router }

// workload is a kind of what goes on without its caller. It moves with its user, whose seat one
// host holds.
type workload interface {
	// Due returns users, of whom some are clients' sandboxes, for whom some host has to act.
	Due() []string
	// Adopt takes over what a user has, once this host holds the user.
	Adopt(user string) error
	// Release ends what of it runs here, before this host gives the user up.
	Release(ctx context.Context, user string) error
	// Busy reports whether a user has something here that no other host would start again.
	Busy(user string) bool
}

// adoptLimit is how long Take waits for what is known of a user.
const adoptLimit = 5 * time.Second

// Take takes over a user's workloads once this host has all that is known of them. It implements
// forward.Local.
func (m *Member) Take(user string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adoptLimit)
	defer cancel()
	if err := m.cluster.Reached(ctx, 1); err != nil {
		return fmt.Errorf("cannot take over user %q: %w", user, err)
	}
	for _, w := range m.workloads {
		if err := w.Adopt(user); err != nil {
			return err
		}
	}
	return nil
}

// Release ends everything of a user's that runs on this host. It implements forward.Local.
func (m *Member) Release(ctx context.Context, user string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, w := range m.workloads {
		if err := w.Release(ctx, user); err != nil {
			return err
		}
	}
	return m.parts.Executor.Leave(ctx, user)
}

// Busy implements forward.Local.
func (m *Member) Busy(user string) bool {
	return slices.ContainsFunc(m.workloads, func(w workload) bool { return w.Busy(user) })
}

// List returns the hosts of the cluster for callers.
func (m *Member) List() (list []types.Node) {
	for _, n := range m.cluster.Nodes() {
		list = append(list, types.Node{
			Name: n.Name, Address: n.Address, Version: n.Version, Draining: n.Draining,
			Users: n.Users,
		})
	}
	for _, name := range m.cluster.Lost() {
		n, _ := m.cluster.Node(name)
		list = append(list, types.Node{Name: name, Draining: n.Draining, Users: n.Users,
			Lost: true})
	}
	slices.SortFunc(list, func(a, b types.Node) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// SetDraining starts or stops draining a host.
func (m *Member) SetDraining(ctx context.Context, node string, draining bool) error {
	return m.cluster.SetDraining(ctx, node, draining)
}

// Remove removes a lost host from the cluster.
func (m *Member) Remove(ctx context.Context, node string) error {
	return m.cluster.Remove(ctx, node)
}

// State is what a host knows of itself as a member of its cluster.
type State struct {
	Seats, Hosts, Fences int
	Unheld, Lost         int
	// Left is for how long the host may go on without hearing from etcd.
	Left  time.Duration
	Calls forward.Counts
}

// State returns the present state.
func (m *Member) State() State {
	return State{
		Seats: len(m.cluster.Seated()), Hosts: len(m.cluster.Nodes()),
		Fences: m.fence.Record().Fences, Unheld: len(m.unheld()), Lost: len(m.cluster.Lost()),
		Left: max(m.fence.Left(), 0), Calls: m.router.Counts(),
	}
}

// inBackground runs work until stop is called. stop waits for its end.
func inBackground(ctx context.Context, work func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { work(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}
