// Package cluster decides which of several hosts holds a user. In etcd, a host's membership is a
// key on its lease, a user's seat is a key on the lease of the user's host, and a user's records
// are written in transactions that fail if another host has the seat by then. The lease itself
// belongs to the fence (internal/cluster/fence), which outlives the service.
//
// cluster.go has the known state, watch.go keeps it current, dial.go connects to etcd, events.go
// tells of changes of hosts and seats, seats.go claims seats and gives them up, lost.go deals with
// lost hosts, records.go stores users' records.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/events"
)

// Node is a host.
type Node struct {
	Name    string `json:"-"`
	Address string `json:"address"` // of its node listener
	Version string `json:"version"`
	// Instance is the id of its dataDir, which no other host has.
	Instance string `json:"instance,omitempty"`
	// Lease is the lease that the host's key and its users' seats are on.
	Lease int64 `json:"-"`
	// Draining reports whether the host takes no new users.
	Draining bool `json:"-"`
	// Users is the number of seats that the host has.
	Users int `json:"-"`
	// revision is the revision of the host's key; it differs with each lease.
	revision int64
	// epoch belongs to the lease with which the host has joined; 0 for none.
	epoch int64
}

// Seat says that a host holds a user. Each seat has an Epoch of its own, and later ones are
// greater.
type Seat struct {
	User, Host string
	Epoch      int64
	// Lease is the host's lease when it got the seat. The seat ends with that lease, even if the
	// host has a new one by then.
	Lease int64
}

// Config configures a Cluster; all fields must be set except Instance, Fences, LocalHomes and
// Events.
type Config struct {
	// Host is this host's name, Address is where the other hosts reach it.
	Host, Address, Version string
	// Instance is the id of this host's dataDir.
	Instance string
	// Fences says that a lost host's users may be taken over only after FenceLost, on any host, has
	// fenced it off.
	Fences bool
	// LocalHomes says that only the host that held a user first may ever hold that user.
	LocalHomes bool
	// Events receives the changes of hosts and seats.
	Events *events.Stream
	Log    zerolog.Logger
}

// Cluster is what a host knows of the others. It is safe for concurrent use.
type Cluster struct {
	cfg  Config
	etcd *clientv3.Client

	mu       sync.Mutex
	revision int64         // everything up to this revision is known here
	changed  chan struct{} // closed when revision changes
	nodes    map[string]Node
	drains   map[string]bool
	seats    map[string]Seat
	users    map[string]int // seats by host
	claiming map[string]int // seats that are being claimed, by host
	watchers map[*watcher]bool
	keepers  []keeper
	members  map[string]int64  // epochs of hosts that have joined and have not reported that nothing runs there
	fencing  map[string]bool   // hosts against which cluster.fenceCommand runs
	states   map[string]string // of hosts, as the last events said
	holders  map[string]Seat   // by user: the host that holds the user, or held the user last
	leased   context.Context   // see Leased
	joined   int64             // the lease of the last Join
	fenced   context.CancelCauseFunc
}

// New returns a Cluster. Call Keep before Run.
func New(etcd *clientv3.Client, cfg Config) *Cluster {
	leased, fenced := context.WithCancelCause(context.Background())
	return &Cluster{
		leased: leased, fenced: fenced,
		cfg: cfg, etcd: etcd, changed: make(chan struct{}), nodes: map[string]Node{},
		drains: map[string]bool{}, seats: map[string]Seat{},
		users: map[string]int{}, claiming: map[string]int{}, watchers: map[*watcher]bool{},
		members: map[string]int64{}, fencing: map[string]bool{}, states: map[string]string{},
		holders: map[string]Seat{},
	}
}

// Host returns this host's name.
func (c *Cluster) Host() string { return c.cfg.Host }

// Nodes returns the live hosts, sorted by name.
func (c *Cluster) Nodes() []Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Collect(maps.Values(c.nodes))
	for i := range list {
		list[i].Draining, list[i].Users = c.drains[list[i].Name], c.users[list[i].Name]
	}
	slices.SortFunc(list, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Node returns a host, and reports whether it is live.
func (c *Cluster) Node(name string) (Node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[name]
	n.Draining, n.Users, n.epoch = c.drains[name], c.users[name], c.members[name]
	return n, ok
}

// Seat returns a user's seat as far as it is known here now.
func (c *Cluster) Seat(user string) (Seat, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.seats[user]
	return s, ok
}

// Holds reports whether this host holds a user, or may hold one: its seats are not known before
// etcd has been read.
func (c *Cluster) Holds(user string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revision == 0 || c.seats[user].Host == c.cfg.Host
}

// Seated returns the seats of the users whom this host holds.
func (c *Cluster) Seated() (list []Seat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.seats {
		if s.Host == c.cfg.Host {
			list = append(list, s)
		}
	}
	return list
}

// MayStart returns nil while this host, as far as is known, holds a user with the given lease,
// which is the one it has now.
func (c *Cluster) MayStart(user string, lease int64) error {
	if s, held := c.Seat(user); held && s.Host == c.cfg.Host && s.Lease == lease {
		return nil
	}
	return fmt.Errorf("this host does not hold user %q now: ask again: %w", user,
		cerrdefs.ErrUnavailable)
}

// Reached waits until everything up to a revision of etcd is known here. It must be one at which a
// key of ours was written or deleted: others may never be heard of.
func (c *Cluster) Reached(ctx context.Context, revision int64) error {
	return c.until(ctx, func() bool { return c.revision >= revision })
}

// until waits until what is known here is as wanted. wanted is called with mu held.
func (c *Cluster) until(ctx context.Context, wanted func() bool) error {
	for {
		c.mu.Lock()
		is, changed := wanted(), c.changed
		c.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return unanswered(ctx, context.Cause(ctx))
		}
	}
}

// Answers asks etcd, and returns an error that says what to do if etcd does not answer. etcd may
// have to choose a leader first.
func (c *Cluster) Answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if _, err := c.etcd.Get(ctx, keyOf("nodes", c.cfg.Host), clientv3.WithCountOnly()); err != nil {
		return unanswered(ctx, err)
	}
	return nil
}

// errLeaseEnded is the cause with which Leased's context ends.
var errLeaseEnded = fmt.Errorf(
	"this host has lost its lease, so it records nothing for users before it has one again: ask another host, or this one later (sandbox node list says which have one): %w",
	cerrdefs.ErrUnavailable)

// unanswered returns the error for a caller when etcd is silent (err), is full, or ctx has ended
// with the lease.
func unanswered(ctx context.Context, err error) error {
	if context.Cause(ctx) == errLeaseEnded {
		return errLeaseEnded
	}
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf(
			"the cluster's etcd is full, so it records nothing and no host may take the user: raise its quota or compact and defragment it, then disarm its alarm (etcdctl alarm disarm) (%w): %v",
			cerrdefs.ErrUnavailable, err)
	}
	return fmt.Errorf(
		"the cluster's etcd does not answer, so no host may take the user: see that a majority of its members runs and can be reached (%w): %v",
		cerrdefs.ErrUnavailable, err)
}

// place chooses the host for a new user: the one with the fewest users that is not draining; on a
// tie, this one. mu is held.
func (c *Cluster) place() (Node, bool) {
	load := func(n Node) int { return c.users[n.Name] + c.claiming[n.Name] }
	var free []Node
	for _, n := range c.nodes {
		if !c.drains[n.Name] {
			free = append(free, n)
		}
	}
	if len(free) == 0 {
		return Node{}, false
	}
	best := slices.MinFunc(free, func(a, b Node) int {
		own := func(n Node) int {
			if n.Name == c.cfg.Host {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(load(a), load(b)), cmp.Compare(own(a), own(b)),
			strings.Compare(a.Name, b.Name))
	})
	best.epoch = c.members[best.Name]
	return best, true
}

// Prefix begins all our keys in etcd.
const Prefix = "/daycare/"

func keyOf(kind, name string) string { return Prefix + kind + "/" + name }
