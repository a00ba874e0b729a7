package guard

import (
	"context"
	"net/netip"
	"sync"
)

// identity distinguishes clients: an address may be given to another client while the connections of
// the one before it are still ending.
type identity struct {
	source netip.Addr
	done   <-chan struct{}
}

// endpointState is the state of a client that has had connections, until it is revoked.
type endpointState struct {
	flows map[*flow]bool // true while the flow is undecided
	plain int
	// undecided is how many of flows are.
	undecided int
}

// clients are those that have had connections.
type endpoints struct {
	mu     sync.Mutex
	active map[identity]*endpointState
	closed bool
}

type admission int

const (
	admitted admission = iota
	full
	revoked
)

// enter counts a flow in. The first of a client starts the goroutine that waits for its revocation.
func (cs *endpoints) enter(ctx context.Context, f *flow) admission {
	select {
	case <-f.who.done:
		return revoked
	default:
	}
	g := f.guard
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return revoked
	}
	t := cs.active[f.who]
	if t == nil {
		t = &endpointState{flows: map[*flow]bool{}}
		cs.active[f.who] = t
		g.running.Go(func() { cs.watch(ctx, f.who, t) })
	}
	most := g.cfg.Limits
	if len(t.flows) >= most.Connections || t.undecided >= most.Undecided || f.plain && t.plain >= most.HTTPConnections {
		return full
	}
	f.state = t
	t.flows[f] = true
	t.undecided++
	if f.plain {
		t.plain++
	}
	g.open.Add(1)
	return admitted
}

// watch ends a client's flows when it is revoked. It outlives them: a program that makes one connection
// after the other would start it for each.
func (cs *endpoints) watch(ctx context.Context, who identity, t *endpointState) {
	select {
	case <-who.done:
		cs.mu.Lock()
		defer cs.mu.Unlock()
		delete(cs.active, who)
		for f := range t.flows {
			f.cut()
		}
	case <-ctx.Done():
	}
}

// Recheck ends the connections of an endpoint to names that it may not reach any more, and those alone.
func (g *Guard) Recheck(ep Endpoint) {
	g.endpoints.mu.Lock()
	defer g.endpoints.mu.Unlock()
	for who, t := range g.endpoints.active {
		if who.done != ep.Done() {
			continue
		}
		for f := range t.flows {
			if name := f.name.Load(); name != nil && !ep.Allows(*name) {
				f.cut()
			}
		}
	}
}

// decided says that a flow's name is known, or never will be.
func (cs *endpoints) decided(f *flow) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if t := f.state; t.flows[f] {
		t.flows[f] = false
		t.undecided--
	}
}

func (cs *endpoints) leave(f *flow) {
	f.guard.open.Add(-1)
	f.release()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	t := f.state
	if t.flows[f] {
		t.undecided--
	}
	if f.plain {
		t.plain--
	}
	delete(t.flows, f)
}

func (cs *endpoints) abortAll() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for _, t := range cs.active {
		for f := range t.flows {
			f.cut()
		}
	}
}
