package process

import (
	"context"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
)

// The processes of a sandbox that is paused are paused, and what was to be started again waits. Whether a sandbox is
// paused is kept by who knows sandboxes: Config.Paused.

// pausedAtOnce is how many processes are paused or resumed at a time.
const pausedAtOnce = 4

// Paused reports whether a process is to be paused.
func (m *Manager) Paused(id string) bool {
	m.mu.Lock()
	p := m.processes[id]
	m.mu.Unlock()
	return p != nil && m.paused(m.shown(p))
}

func (m *Manager) paused(r Record) bool {
	return m.cfg.Paused != nil && m.cfg.Paused(r.UserID, r.SandboxID)
}

// FollowPause has the processes of a sandbox be as Config.Paused says: paused, or going on. It blocks until they are.
func (m *Manager) FollowPause(ctx context.Context, sandboxID string) error {
	var following errgroup.Group
	following.SetLimit(pausedAtOnce)
	for _, p := range m.all() {
		if m.shown(p).SandboxID == sandboxID {
			following.Go(func() error {
				return m.join(p, followingPause, func(ctx context.Context) error { return m.followPause(ctx, p) }).wait(ctx)
			})
		}
	}
	return following.Wait()
}

// followPause is FollowPause for one process, whose turn is held.
func (m *Manager) followPause(ctx context.Context, p *process) error {
	r := p.record
	if p.gone {
		return nil
	}
	if r.Status != Running {
		if r.wanted() && p.stopTimer == nil && !m.paused(r) {
			m.arm(p) // it was to be started again meanwhile
		}
		return nil
	}
	change := m.cfg.Runner.Resume
	if m.paused(r) {
		change = m.cfg.Runner.Pause
	}
	if err := change(ctx, p.instance()); err != nil && !errdefs.IsNotFound(err) { // gone: it is heard of
		return err
	}
	return nil
}
