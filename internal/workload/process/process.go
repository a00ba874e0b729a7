// Package process keeps durable processes: commands of a user that go on when the service ends and,
// with KeepAlive, are started again when they end. It records the desired and the actual state, and
// decides; a Runner creates and ends the containers.
//
// record.go defines what is known of a process, store.go keeps it on disk, and secrets.go has
// what nobody may read there sealed. runner.go declares what the package needs from others. manager.go
// holds all processes and process.go one; view.go is for callers, who name sandboxes. start.go,
// stop.go and wait.go serve them, and restart.go starts ended processes again after the delay of
// backoff.go. reconcile.go compares the records with the existing containers when queue.go triggers
// it. shared.go has what is different in a cluster. life.go lets callers hang up, and shuts
// everything down. log.go reads what a process has written, follow.go keeps reading, and watch.go
// wakes it. expose.go handles what is visible from outside: readiness and ports. listeners.go
// listens for the ports on the host's loopback (ports.go), and relay.go carries their connections.
// openfiles.go knows what processes have open.
//
// For each process, one goroutine at a time decides: the one that holds the process's turn. It
// keeps the turn during calls of the Runner. Processes do not wait for each other.
package process

import (
	"context"
	"fmt"
	"time"
)

// process is a Record with the state needed to decide about it, and what is decided. Manager has
// what is about all processes.
type process struct {
	of   *Manager
	id   string
	turn chan struct{} // full while a goroutine holds the turn

	// Guarded by the turn.
	timer     Timer      // of the next start; nil for none
	leftovers []Instance // containers that could not be removed
	moved     bool       // came from another host, and not looked for yet: it did not end by itself

	// Guarded by the turn and Manager.mu: both are held to write, either to read.
	record     Record
	generation uint64 // counts the changes of record
	gone       bool   // removed, or never created
	signalled  bool   // a signal was sent, and its end is awaited

	waiting [doings]*attempt // those that wait for the turn; guarded by Manager.mu

	files openFiles // that its run has open; has a lock of its own

	givePlace, givePorts func() // give back what it takes of the quotas; Ledger.Take returned them

	finished chan struct{} // closed by the turn's holder when the process will not run again
}

func (m *Manager) newProcess(r Record) *process {
	return &process{of: m, id: r.ID, record: r, turn: make(chan struct{}, 1),
		finished: make(chan struct{})}
}

// take waits for the turn; give gives it back.
func (p *process) take(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *process) give() { <-p.turn }

// finish records that the process will not run again; the turn is held.
func (p *process) finish() {
	p.cancelTimer()
	select {
	case <-p.finished:
	default:
		close(p.finished)
		p.givePorts()
	}
}

// cancelTimer cancels the next start, if one is planned; the turn is held. A timer that has fired
// already finds none.
func (p *process) cancelTimer() {
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}

// instance returns the run that the record names; the turn or Manager.mu is held.
func (p *process) instance() Instance {
	i := p.record.Instance
	return Instance{Process: p.id, User: p.record.UserID, Container: i.Container,
		Started: i.Started, PID: p.record.PID, Running: p.record.Status == Running}
}

func (m *Manager) now() time.Time { return m.cfg.Clock.Now().UTC() }

// keep writes r to disk, or to etcd, and then makes it visible; the turn is held. After an error
// nothing has changed.
func (p *process) keep(r Record, what change) error {
	r.UpdatedAt = p.of.now()
	if err := p.of.store.write(r); err != nil {
		return fmt.Errorf("cannot record process %s: %w", p.id, err)
	}
	p.show(r, what)
	return nil
}

// observe records an observed state, even if it cannot be written; the turn is held.
func (p *process) observe(r Record, what change) {
	if err := p.keep(r, what); err != nil {
		p.of.log.Error().Err(err).
			Msg("the record of a process cannot be written, and is out of date until its next change")
		r.UpdatedAt = p.of.now()
		p.show(r, what)
	}
}

func (p *process) show(r Record, what change) {
	p.of.mu.Lock()
	p.record = r
	p.generation++
	p.of.mu.Unlock()
	p.publish(string(r.State()), what)
}

// forget removes a process from the manager; the turn is held.
func (p *process) forget(what change) {
	p.of.mu.Lock()
	p.of.drop(p)
	p.gone = true
	p.generation++
	p.of.mu.Unlock()
	p.publish("removed", what)
	p.finish()
	p.givePlace()
	p.of.cfg.Ports.Close(p.id)
}
