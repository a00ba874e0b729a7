package guard

import (
	"net/netip"
	"sync"
)

// identity tells clients apart: an address may be given to another client while the connections of
// the one before it are still ending.
type identity struct {
	source netip.Addr
	done   <-chan struct{}
}

// tenant is a client that has connections.
type tenant struct {
	flows map[*flow]bool // true while the flow is undecided
	plain int
	// undecided is how many of flows are.
	undecided int
	gone      bool
	// empty is closed when the last flow has left.
	empty chan struct{}
}

// clients are those that have connections.
type clients struct {
	mu     sync.Mutex
	active map[identity]*tenant
	closed bool
}

type admission int

const (
	admitted admission = iota
	full
	revoked
)

// enter counts a flow in. The first of a client starts the goroutine that waits for its revocation.
func (cs *clients) enter(f *flow, g *Guard) admission {
	select {
	case <-f.who.done:
		return revoked
	default:
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	who := f.who
	t := cs.active[who]
	if t == nil {
		t = &tenant{flows: map[*flow]bool{}, empty: make(chan struct{})}
	}
	most := g.cfg.Limits
	switch {
	case t.gone, cs.closed:
		return revoked
	case len(t.flows) >= most.Connections || t.undecided >= most.Undecided || f.plain && t.plain >= most.HTTPConnections:
		return full
	}
	if cs.active[who] == nil {
		cs.active[who] = t
		g.running.Go(func() { cs.watch(who.done, t) })
	}
	t.flows[f] = true
	t.undecided++
	if f.plain {
		t.plain++
	}
	g.counts.open.Add(1)
	return admitted
}

// watch ends a client's flows when it is revoked.
func (cs *clients) watch(done <-chan struct{}, t *tenant) {
	select {
	case <-done:
		cs.mu.Lock()
		defer cs.mu.Unlock()
		t.gone = true
		for f := range t.flows {
			f.abort()
		}
	case <-t.empty:
	}
}

// decided says that a flow's name is known, or never will be.
func (cs *clients) decided(f *flow) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if t := cs.active[f.who]; t.flows[f] {
		t.flows[f] = false
		t.undecided--
	}
}

func (cs *clients) leave(f *flow) {
	f.guard.counts.open.Add(-1)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	who := f.who
	t := cs.active[who]
	if t.flows[f] {
		t.undecided--
	}
	if f.plain {
		t.plain--
	}
	delete(t.flows, f)
	if len(t.flows) == 0 {
		delete(cs.active, who)
		close(t.empty)
	}
}

func (cs *clients) abortAll() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for _, t := range cs.active {
		for f := range t.flows {
			f.abort()
		}
	}
}
