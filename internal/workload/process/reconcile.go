package process

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Records are compared with a list of the existing containers: what runs is adopted, what has ended
// is recorded, starts are planned, what ought not to run is stopped, and containers that no record
// names are removed. A record that has changed since before the list was made is not compared with
// it: its process is queued again.

// list lists the containers and starts to consider processes.
func (m *Manager) list(ctx context.Context, s selection) error {
	before := map[*process]uint64{}
	m.mu.Lock()
	for id, p := range m.processes {
		if s.has(id) {
			before[p] = p.generation
		}
	}
	m.mu.Unlock()
	if len(before) == 0 && !s.all {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	instances, err := m.cfg.Runner.Instances(ctx)
	if err != nil {
		return fmt.Errorf("cannot list the containers of processes: %w", err)
	}
	m.queue.listed()
	found := map[string][]Instance{}
	for _, i := range instances {
		found[i.Process] = append(found[i.Process], i)
	}
	for p, generation := range before {
		m.background(func(ctx context.Context) { p.consider(ctx, generation, found[p.id]) })
	}
	for _, i := range instances {
		_, inside := i.Inside()
		switch p, read := m.known(i.User, i.Process); {
		case !s.all || p != nil || inside && !i.Running:
		case read:
			m.background(func(ctx context.Context) { m.removeStray(ctx, i) })
		default:
			m.enqueueLater(every)
		}
	}
	return nil
}

// known returns the process of a container, nil for none. One that is just being started is known:
// its id is registered before its container exists. As long as read is false, an unknown process
// may have a record.
func (m *Manager) known(user, id string) (p *process, read bool) {
	read = m.cfg.Shared == nil || !m.cfg.Shared.Holds(user)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.processes[id], read || m.adopted[user]
}

// removeStray removes a container without a record, which nobody could stop.
func (m *Manager) removeStray(ctx context.Context, i Instance) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	m.log.Warn().Str("process", i.Process).Str("container", i.Container).Bool("running", i.Running).
		Msg("removing the container of a process that has no record")
	if err := m.cfg.Runner.Remove(ctx, i); err != nil {
		m.log.Error().Err(err).Str("process", i.Process).
			Msg("cannot remove the container of a process that has no record")
		m.enqueueLater(every)
	}
}

// consider compares one record with the containers found for its process.
func (p *process) consider(ctx context.Context, generation uint64, found []Instance) {
	if p.take(ctx) != nil {
		return
	}
	defer p.give()
	if p.gone {
		return
	}
	if p.generation != generation {
		p.of.enqueue(only(p.id))
		return
	}
	defer func() { p.moved = false }()
	r := p.record
	var own *Instance
	for _, i := range found {
		// After a restart of the host no running container can be the recorded run, whatever it
		// looks like.
		if r.Instance.same(i.identity()) && (!i.Running || r.BootID == p.of.cfg.BootID) {
			own = &i
			continue
		}
		if _, inside := i.Inside(); inside && !i.Running {
			continue
		}
		p.of.log.Warn().Str("process", p.id).Str("container", i.Container).
			Msg("removing a container that is not the recorded run of its process")
		p.discard(ctx, i)
	}
	switch {
	case r.Status != Running:
		if r.wanted() && p.timer == nil {
			p.arm()
		}
	case own != nil && own.Running:
		p.adopt(*own)
	case own != nil:
		p.findExit(ctx, *own)
	case r.BootID != p.of.cfg.BootID && p.moved:
		p.conclude(ctx, Exit{}, left)
	case r.BootID != p.of.cfg.BootID:
		p.conclude(ctx, Exit{}, rebooted)
	default:
		p.findExit(ctx, p.instance()) // what ran inside its sandbox may have ended with that
	}
}

// findExit concludes an ended run; the turn is held.
func (p *process) findExit(ctx context.Context, i Instance) {
	if err := p.concludeEnded(ctx, i); err != nil && ctx.Err() == nil {
		p.of.log.Warn().Err(err).Str("process", p.id).
			Msg("cannot tell how a process ended; trying again")
		p.of.enqueueLater(only(p.id))
	}
}

// adopt takes over a process that runs; the turn is held.
func (p *process) adopt(i Instance) {
	if r := p.record; r.PID != i.PID {
		r.PID = i.PID
		p.observe(r, "")
	}
	if p.record.DesiredState == Running {
		p.of.background(func(ctx context.Context) { // also if it is not to be paused: see Paused
			if p.take(ctx) != nil {
				return
			}
			defer p.give()
			if err := p.followPause(ctx); err != nil && ctx.Err() == nil {
				p.of.log.Warn().Err(err).Str("process", p.id).
					Msg("cannot pause or resume a process as its sandbox is; trying again")
				p.of.enqueueLater(only(p.id))
			}
		})
		return
	}
	p.of.background(func(ctx context.Context) {
		if p.take(ctx) != nil {
			return
		}
		defer p.give()
		if err := p.halt(ctx, unix.SIGTERM); err != nil && ctx.Err() == nil {
			p.of.log.Warn().Err(err).Msg("a process that ought to be stopped still runs")
			p.of.enqueueLater(only(p.id))
		}
	})
}
