// Package process keeps durable processes: commands of a user that go on when the service ends, and
// that come back when they die. It holds what is wanted and what is so, and decides; a Runner makes
// and ends the containers.
//
// record.go says what is known of a process, store.go keeps it on disk and secrets.go what nobody may
// read there. runner.go is what is asked of others. manager.go holds all processes and process.go one;
// start.go and stop.go do what callers ask for, restart.go starts again what has ended, backoff.go says
// when. reconcile.go compares the records with the containers that there are, when queue.go has it do so.
// life.go lets callers hang up, and ends all that at last. log.go reads what a process has written, follow.go goes on reading, and
// watcher.go wakes it. expose.go is what can be seen from outside: whether it is ready, and its ports, at which
// listeners.go listens on the host's loopback (ports.go); relay.go carries the connections.
//
// For one process, one goroutine at a time decides: the one that has its turn. It keeps the turn over
// calls of the Runner, and processes do not wait for each other.
package process

import (
	"context"
	"fmt"
	"time"
)

// process is a Record and who decides about it.
type process struct {
	id   string
	turn chan struct{} // full while somebody has the turn

	// Of whoever has the turn.
	stopTimer func() bool // of the next start; nil for none
	leftovers []Instance  // that could not be removed
	moved     bool        // from another host, until it is known what it does here: nothing of its own has made it end

	// Of whoever has the turn, who also holds Manager.mu to change them; others hold that to read.
	record     Record
	generation uint64 // counts the changes of record
	gone       bool   // removed, or never come to be
	signalled  bool   // its end is waited for

	waiting [doings]*attempt // for the turn; under Manager.mu

	givePlace, givePorts func() // give back what it has of the quotas

	finished chan struct{} // closed when it will not run again; by whoever has the turn
}

func newProcess(r Record) *process {
	return &process{id: r.ID, record: r, turn: make(chan struct{}, 1), finished: make(chan struct{})}
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

// cancelTimer makes it known that no start is planned; the turn is held. A timer that has fired finds
// that out.
func (p *process) cancelTimer() {
	if p.stopTimer != nil {
		p.stopTimer()
		p.stopTimer = nil
	}
}

// instance is the run that the record names; the turn is held, or Manager.mu.
func (p *process) instance() Instance {
	i := p.record.Instance
	return Instance{Process: p.id, User: p.record.UserID, Container: i.Container, Started: i.Started, PID: p.record.PID, Running: p.record.Status == Running}
}

func (m *Manager) now() time.Time { return m.cfg.Clock.Now().UTC() }

// keep records r, on disk and then for all to see; the turn is held. After an error nothing has changed.
func (m *Manager) keep(p *process, r Record, what change) error {
	r.UpdatedAt = m.now()
	if err := m.store.write(r); err != nil {
		return fmt.Errorf("cannot record process %s: %w", p.id, err)
	}
	m.show(p, r, what)
	return nil
}

// observe records what is so, whether or not the disk takes it; the turn is held.
func (m *Manager) observe(p *process, r Record, what change) {
	if err := m.keep(p, r, what); err != nil {
		m.log.Error().Err(err).Msg("a process record is behind; it is written with the next change")
		r.UpdatedAt = m.now()
		m.show(p, r, what)
	}
}

func (m *Manager) show(p *process, r Record, what change) {
	m.mu.Lock()
	p.record = r
	p.generation++
	m.mu.Unlock()
	m.publish(p, string(r.Status), what)
}

// forget takes a process out; the turn is held.
func (m *Manager) forget(p *process, what change) {
	m.mu.Lock()
	delete(m.processes, p.id)
	p.gone = true
	p.generation++
	m.mu.Unlock()
	m.publish(p, "removed", what)
	p.finish()
	p.givePlace()
	m.cfg.Ports.Close(p.id)
}
