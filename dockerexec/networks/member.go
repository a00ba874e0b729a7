package networks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/internal/engine"
)

// Candidate is a container that is to have a place on a network.
type Candidate struct {
	Party
	// Base is the beginning of its network's name.
	Base string
	// Pooled says that it belongs to no user yet, and Detached that it goes on without the service.
	Pooled, Detached bool
	// Linked says that its runtime can connect it, and At is where the runtime of one that was found
	// has.
	Linked bool
	At     netip.Addr
}

// Member is a container's place on a network. Nil is that of a container without a network, which
// has nothing to do. Its methods are safe for concurrent use, but Join, Bind and Assign are for one
// goroutine at a time.
type Member struct {
	of *Networks
	// base and profile name its network, which stays the same.
	base, profile string
	// Wiring is how the engine connects a container that Join has admitted.
	wiring Wiring

	// Under Networks.mu.
	is     Candidate
	holder uint64 // 0 when it has left
	// id is its container if it was found, or is bound. found is where, until the Filter knows.
	id    string
	found *Endpoint
	// linked is where its runtime connects it; the engine does not know.
	linked netip.Addr
	// cleared says that it is ended with its network.
	cleared bool
	// failed says that it could not be bound when that was last tried.
	failed bool
	// withheld is where one is that waits in the pool, and whose network is to be open.
	withheld *Endpoint
}

// Wiring is how a container is connected when it is made; empty for one without a network. With a
// Link its runtime does it, from what that says, and not the engine.
type Wiring struct {
	Network    string
	Addr       netip.Addr
	Gateway    netip.Addr
	ResolvConf string // a file on the host
	Link       string
}

// network returns the name of its network.
func (m *Member) network() string { return nameOf(m.base, m.profile) }

// Join makes a network ready for a container that is to be made, and gives it an address there. It
// returns nil for one without a network.
func (n *Networks) Join(ctx context.Context, c Candidate) (*Member, error) {
	if c.Egress.Profile == "" {
		return nil, nil
	}
	n.making.Lock() // until it is a member: only then is it cleared with its network
	defer n.making.Unlock()
	on, err := n.ready(ctx, c.Base, c.Egress.Profile)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	m := n.admit(c)
	n.mu.Unlock()
	addr, err := n.cfg.Filter.Add(c.Party, m.holder)
	if err != nil {
		n.forget(m)
		return nil, err
	}
	m.wiring = Wiring{Network: on.Name, Addr: addr, Gateway: on.Gateway,
		ResolvConf: n.cfg.Filter.ResolvConf(on.Profile)}
	if c.Linked {
		m.wiring.Link = n.cfg.Filter.Link(on, addr, macOf(addr))
	}
	if m.wiring.Link != "" {
		n.mu.Lock()
		m.linked = addr
		n.mu.Unlock()
	}
	return m, nil
}

// Found gives a container that an earlier service has left its place again. Where it is is known of
// those, too, about which the engine says nothing when it is asked: the list has it. It returns nil
// for one without a network, and asks nobody.
func (n *Networks) Found(c Candidate, listed engine.Container) *Member {
	if c.Egress.Profile == "" {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.admit(c)
	m.id, m.linked = listed.ID, c.At
	if c.At.IsValid() && !listed.Runs() {
		return m
	}
	if at, err := m.endpointOn(listed.Endpoints); err == nil { // otherwise Bind finds it missing
		m.found = &at
	}
	return m
}

// admit registers a container. n.mu is held.
func (n *Networks) admit(c Candidate) *Member {
	n.holders++
	m := &Member{of: n, base: c.Base, profile: c.Egress.Profile, is: c, holder: n.holders}
	n.members[m] = true
	return m
}

// forget unregisters a container, and returns its holder; 0 if it has left already.
func (n *Networks) forget(m *Member) (holder uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	holder = m.holder
	m.holder, m.found = 0, nil // whoever is just naming it takes that back
	delete(n.members, m)
	return holder
}

// Wiring returns how the engine is to connect the container.
func (m *Member) Wiring() Wiring {
	if m == nil {
		return Wiring{}
	}
	return m.wiring
}

// Leave gives the container's address back and ends its connections.
func (m *Member) Leave() {
	if m == nil {
		return
	}
	if holder := m.of.forget(m); holder != 0 {
		m.of.cfg.Filter.Remove(m.profile, holder)
	}
}

// Bind opens network access for a container that has started. One of the pool whose network is to
// be open gets none until Assign. again says that it could not be bound the time before, either.
// The error is ErrRecreated if its network was.
func (m *Member) Bind(ctx context.Context, id string) (again bool, err error) {
	if m == nil {
		return false, nil
	}
	m.of.mu.Lock()
	m.id = id
	m.of.mu.Unlock()
	at, err := m.endpoint(ctx, id)
	m.of.mu.Lock()
	withhold := m.is.Pooled && m.is.Egress.IsOpen()
	if err == nil && withhold {
		m.withheld = &at
	}
	m.of.mu.Unlock()
	if err == nil && !withhold {
		err = m.of.cfg.Filter.Bind(at)
	}
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if m.cleared {
		err = ErrRecreated
	}
	again, m.failed = m.failed, err != nil
	return again, err
}

// Failed reports whether the container could not be bound, as far as was tried.
func (m *Member) Failed() bool {
	if m == nil {
		return false
	}
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	return m.failed
}

// Assign has a container of the pool be a user's, and reach what that user may reach.
func (m *Member) Assign(to Candidate) error {
	if m == nil {
		return nil
	}
	m.of.mu.Lock()
	holder, from, withheld := m.holder, m.is, m.withheld
	m.of.mu.Unlock()
	if holder == 0 {
		return nil
	}
	if err := m.of.cfg.Filter.Assign(holder, from.Party, to.Party); err != nil {
		return err
	}
	m.of.mu.Lock()
	m.is, m.withheld = to, nil
	m.of.mu.Unlock()
	if withheld == nil {
		return nil
	}
	at := *withheld
	at.Party = to.Party
	return m.of.cfg.Filter.Bind(at)
}

// Change has a running container reach something else from now on.
func (m *Member) Change(ctx context.Context, id string, reach Egress) error {
	at, err := m.endpoint(ctx, id)
	if err != nil {
		return m.of.cfg.Engine.Explain(err)
	}
	at.Egress = reach
	if err := m.of.cfg.Filter.Change(at); err != nil {
		return err
	}
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	m.is.Egress = reach
	return nil
}

// endpointLimit is how long the engine may take to say how a container is connected. If the
// container's start is held up by what runs in it, Docker never answers.
const endpointLimit = 15 * time.Second

// endpoint asks the engine how the container is connected.
func (m *Member) endpoint(ctx context.Context, id string) (Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, endpointLimit)
	defer cancel()
	found, err := m.of.cfg.Engine.Inspect(ctx, id)
	if err != nil {
		return Endpoint{}, fmt.Errorf("cannot inspect: %w", err)
	}
	m.of.mu.Lock()
	at, err := m.endpointOn(found.Endpoints)
	m.of.mu.Unlock()
	if err == nil && !found.Runs() {
		err = errors.New("the container has ended")
	}
	at.PID = found.PID
	return at, err
}

// macOf returns the hardware address that a runtime gives a container: as the engine does, one that
// follows from the address.
func macOf(addr netip.Addr) net.HardwareAddr {
	b := addr.As4()
	return net.HardwareAddr{0x02, 0x42, b[0], b[1], b[2], b[3]}
}

// endpointOn reads where the engine says that the container is; of.mu is held.
func (m *Member) endpointOn(endpoints []engine.Endpoint) (Endpoint, error) {
	if m.linked.IsValid() && len(endpoints) == 0 {
		return Endpoint{Party: m.is.Party, Holder: m.holder, Addr: m.linked, MAC: macOf(m.linked),
			Linked: true}, nil
	}
	name := m.network()
	if len(endpoints) != 1 || endpoints[0].Network != name {
		return Endpoint{}, fmt.Errorf("the container is not on network %s alone: %w", name,
			cerrdefs.ErrFailedPrecondition)
	}
	at := endpoints[0]
	if !at.Addr.IsValid() {
		return Endpoint{}, fmt.Errorf(
			"the container has no address on network %s: it has ended", name)
	}
	if at.MAC == nil {
		return Endpoint{}, fmt.Errorf("the container has no hardware address on network %s", name)
	}
	return Endpoint{Party: m.is.Party, Holder: m.holder, Addr: at.Addr, MAC: at.MAC}, nil
}

// asksAtOnce is how many containers the engine is asked about at a time.
const asksAtOnce = 8

// unnamed returns the containers that were found on a network and that the Filter does not know
// yet.
func (n *Networks) unnamed(ctx context.Context, on Network) (list []*Member, at []Endpoint) {
	var ids []string
	n.mu.Lock()
	for m := range n.members {
		if m.found != nil && m.network() == on.Name {
			list, at, ids = append(list, m), append(at, *m.found), append(ids, m.id)
		}
	}
	n.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, endpointLimit)
	defer cancel()
	var asking errgroup.Group
	asking.SetLimit(asksAtOnce)
	for i, id := range ids {
		asking.Go(func() error {
			// Without an answer it is named all the same.
			if found, err := n.cfg.Engine.Inspect(ctx, id); err == nil && found.Runs() {
				at[i].PID = found.PID
			}
			return nil
		})
	}
	_ = asking.Wait()
	return list, at
}

// named notes that the Filter knows containers now. Those that have left meanwhile are taken back:
// when they left, the Filter may not have known them yet.
func (n *Networks) named(list []*Member, at []Endpoint) {
	for i, m := range list {
		n.mu.Lock()
		there := m.found != nil
		m.found = nil
		n.mu.Unlock()
		if !there {
			n.cfg.Filter.Remove(m.profile, at[i].Holder)
		}
	}
}
