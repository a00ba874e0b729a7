// Package cluster says which host holds a user, where there are several. What decides is etcd's: membership is a key on a
// host's lease, a user's seat one on the lease of the host that has it, and what is recorded of a user is written in a
// transaction that fails when the seat is another's by then.
//
// cluster.go is what is known; dial.go connects to etcd, and watch.go keeps true what is known; events.go says what has become of hosts and seats; seats.go claims and gives; lost.go is about hosts that are lost;
// records.go keeps what is recorded of users. The lease itself is the fence's (internal/cluster/fence), which outlives the service.
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
	// Instance is that of its dataDir, which no other host has.
	Instance string `json:"instance,omitempty"`
	// Lease is what its key and its users' seats are on.
	Lease int64 `json:"-"`
	// Draining says that it takes no new users.
	Draining bool `json:"-"`
	// Users is how many seats it has.
	Users int `json:"-"`
	// revision is that of its key, which is another with each lease.
	revision int64
	// epoch is of the lease it has joined with; 0 for none.
	epoch int64
}

// Seat says that a host holds a user. Epoch is of this time alone, and grows.
type Seat struct {
	User, Host string
	Epoch      int64
	// Lease is the host's when it got the seat. With that it ends, also when the host has another by then.
	Lease int64
}

// Config is what a Cluster needs; all fields must be set but Instance, Fences, LocalHomes and Events.
type Config struct {
	// Host is this host's name, Address where the others reach it.
	Host, Address, Version string
	// Instance is the id of this host's dataDir.
	Instance string
	// Fences says that a lost host's users may be taken over only when FenceLost has fenced it off, on some host.
	Fences bool
	// LocalHomes says that a user is only ever held by the host that held it first.
	LocalHomes bool
	// Events are told what becomes of hosts and seats.
	Events *events.Stream
	Log    zerolog.Logger
}

// Cluster is what a host knows of the others. It is safe for concurrent use.
type Cluster struct {
	cfg  Config
	etcd *clientv3.Client

	mu       sync.Mutex
	revision int64         // up to which it is told
	changed  chan struct{} // closed when that changes
	nodes    map[string]Node
	drains   map[string]bool
	seats    map[string]Seat
	users    map[string]int // seats by host
	claiming map[string]int // seats on their way, by host
	watchers map[*watcher]bool
	keepers  []keeper
	members  map[string]int64  // epochs of hosts that have joined, and have not said that nothing of them runs
	fencing  map[string]bool   // hosts against which cluster.fenceCommand runs
	states   map[string]string // of hosts, as the last events said
	holders  map[string]Seat   // of users, or their last
	leased   context.Context   // see Leased
	joined   int64             // the lease of the last Join
	fenced   context.CancelCauseFunc
}

// New makes a Cluster. Keep is to be called before Run.
func New(etcd *clientv3.Client, cfg Config) *Cluster {
	leased, fenced := context.WithCancelCause(context.Background())
	return &Cluster{
		leased: leased, fenced: fenced,
		cfg: cfg, etcd: etcd, changed: make(chan struct{}), nodes: map[string]Node{}, drains: map[string]bool{}, seats: map[string]Seat{},
		users: map[string]int{}, claiming: map[string]int{}, watchers: map[*watcher]bool{}, members: map[string]int64{},
		fencing: map[string]bool{}, states: map[string]string{}, holders: map[string]Seat{},
	}
}

// Host is this host's name.
func (c *Cluster) Host() string { return c.cfg.Host }

// Nodes are the hosts that live, by name.
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

// Node finds a host that lives.
func (c *Cluster) Node(name string) (Node, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.nodes[name]
	n.Draining, n.Users, n.epoch = c.drains[name], c.users[name], c.members[name]
	return n, ok
}

// Seat returns a user's seat as it is known now.
func (c *Cluster) Seat(user string) (Seat, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.seats[user]
	return s, ok
}

// Holds reports whether this host holds a user, or may: what it had is not known before etcd has told.
func (c *Cluster) Holds(user string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revision == 0 || c.seats[user].Host == c.cfg.Host
}

// Seated are the users whom this host holds.
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

// MayStart is nil while this host holds a user, as far as is known, with the lease that it has now.
func (c *Cluster) MayStart(user string, lease int64) error {
	if s, held := c.Seat(user); held && s.Host == c.cfg.Host && s.Lease == lease {
		return nil
	}
	return fmt.Errorf("this host does not hold user %q now: ask again: %w", user, cerrdefs.ErrUnavailable)
}

// Reached waits until all is known that was so at a revision.
func (c *Cluster) Reached(ctx context.Context, revision int64) error {
	for {
		c.mu.Lock()
		now, changed := c.revision, c.changed
		c.mu.Unlock()
		if now >= revision {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return unanswered(ctx, context.Cause(ctx))
		}
	}
}

// Answers asks etcd, and says what to do if it does not answer; it may have to choose a leader first.
func (c *Cluster) Answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if _, err := c.etcd.Get(ctx, keyOf("nodes", c.cfg.Host), clientv3.WithCountOnly()); err != nil {
		return unanswered(ctx, err)
	}
	return nil
}

// errLeaseEnded is why Leased's context ends.
var errLeaseEnded = fmt.Errorf("this host has lost its lease, so it records nothing for users before it has one again: ask another host, or this one later (sandbox node list says which have one): %w", cerrdefs.ErrUnavailable)

// unanswered is what a caller is told of an err of etcd's when it is silent, or records nothing, or ctx has ended with the lease.
func unanswered(ctx context.Context, err error) error {
	if context.Cause(ctx) == errLeaseEnded {
		return errLeaseEnded
	}
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf("the cluster's etcd is full, so it records nothing and no host may take the user: raise its quota or compact and defragment it, then disarm its alarm (etcdctl alarm disarm) (%w): %v", cerrdefs.ErrUnavailable, err)
	}
	return fmt.Errorf("the cluster's etcd does not answer, so no host may take the user: see that a majority of its members runs and can be reached (%w): %v", cerrdefs.ErrUnavailable, err)
}

// place chooses the host for a new user: the one with the fewest that is not draining, this one in doubt. mu is held.
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
		return cmp.Or(cmp.Compare(load(a), load(b)), cmp.Compare(own(a), own(b)), strings.Compare(a.Name, b.Name))
	})
	best.epoch = c.members[best.Name]
	return best, true
}

// Prefix is what all keys in etcd begin with.
const Prefix = "/daycare/"

func keyOf(kind, name string) string { return Prefix + kind + "/" + name }
