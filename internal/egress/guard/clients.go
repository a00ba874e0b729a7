package guard

import (
	"context"
	"sync"
)

// clientState is the state of a client that has had connections, until it is revoked.
type clientState struct {
	flows map[*flow]bool // true while the flow is undecided
	plain int
	// undecided is how many of flows are undecided.
	undecided int
}

// clients are the clients that have had connections, by Client.Done: an address may be given to
// another client while connections of the previous one are still ending.
type clients struct {
	mu     sync.Mutex
	active map[<-chan struct{}]*clientState
	closed bool
}

type admission int

const (
	admitted admission = iota
	full
	revoked
)

// enter counts a flow. A client's first flow starts the goroutine that waits for the client's
// revocation.
func (cs *clients) enter(ctx context.Context, f *flow) admission {
	revocation := f.who.Done()
	select {
	case <-revocation:
		return revoked
	default:
	}
	g := f.guard
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return revoked
	}
	t := cs.active[revocation]
	if t == nil {
		t = &clientState{flows: map[*flow]bool{}}
		cs.active[revocation] = t
		g.running.Go(func() { cs.watch(ctx, revocation, t) })
	}
	limits := g.cfg.Limits
	if len(t.flows) >= limits.Connections || t.undecided >= limits.Undecided ||
		f.plain && t.plain >= limits.HTTPConnections {
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

// watch ends a client's flows when the client is revoked. It outlives the flows: otherwise a
// program that makes one connection after the other would start it for each.
func (cs *clients) watch(ctx context.Context, revocation <-chan struct{}, t *clientState) {
	select {
	case <-revocation:
		cs.mu.Lock()
		defer cs.mu.Unlock()
		delete(cs.active, revocation)
		for f := range t.flows {
			go f.abort() // which may wait for turns
		}
	case <-ctx.Done():
	}
}

// Recheck ends the connections of a client to names that it may not reach any more, and no
// others.
func (g *Guard) Recheck(who Client) {
	g.clients.mu.Lock()
	defer g.clients.mu.Unlock()
	t := g.clients.active[who.Done()]
	if t == nil {
		return
	}
	for f := range t.flows {
		if name := f.name.Load(); name != nil && !who.Allows(*name) {
			go f.abort() // which may wait for turns
		}
	}
}

// parse counts a flow whose TLS is ended here among those that are parsed. It reports false if the
// client has as many as it may.
func (cs *clients) parse(f *flow) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if f.state.plain >= f.guard.cfg.Limits.HTTPConnections {
		return false
	}
	f.state.plain++
	f.plain = true
	return true
}

// decided records that a flow's name is known, or never will be.
func (cs *clients) decided(f *flow) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if t := f.state; t.flows[f] {
		t.flows[f] = false
		t.undecided--
	}
}

func (cs *clients) leave(f *flow) {
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

func (cs *clients) abortAll() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for _, t := range cs.active {
		for f := range t.flows {
			go f.abort() // which may wait for turns
		}
	}
}
