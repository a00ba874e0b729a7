package process

import (
	"context"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
)

// While a sandbox is paused, so are its processes, and those that were to be started again wait.
// Config.Sandboxes says whether a sandbox is paused.

// pausedAtOnce is how many processes are paused or resumed at a time.
const pausedAtOnce = 4

// Paused reports whether a process that was found paused is to stay so. As long as its record has
// not been read, it may have been paused on request; adopt resumes it if it was not.
func (m *Manager) Paused(user, id string) bool {
	p, read := m.known(user, id)
	if p == nil {
		return !read
	}
	return m.paused(p.shown())
}

func (m *Manager) paused(r Record) bool {
	return m.cfg.Sandboxes != nil && m.cfg.Sandboxes.IsPaused(r.UserID, r.SandboxID)
}

// FollowPause pauses or resumes the processes of a sandbox, as Config.Sandboxes says. It blocks
// until that is done.
func (m *Manager) FollowPause(ctx context.Context, sandboxID string) error {
	var following errgroup.Group
	following.SetLimit(pausedAtOnce)
	for _, p := range m.all() {
		if p.shown().SandboxID == sandboxID {
			following.Go(func() error {
				return p.join(followingPause, func(ctx context.Context) error {
					return p.followPause(ctx)
				}).wait(ctx)
			})
		}
	}
	return following.Wait()
}

// followPause is FollowPause for one process, whose turn is held.
func (p *process) followPause(ctx context.Context) error {
	r := p.record
	if p.gone {
		return nil
	}
	if r.Status != Running {
		if r.wanted() && p.timer == nil && !p.of.paused(r) {
			p.arm() // it was to be started again meanwhile
		}
		return nil
	}
	paused, change := p.of.paused(r), p.of.cfg.Runner.Resume
	if paused {
		change = p.of.cfg.Runner.Pause
	}
	err := change(ctx, p.instance())
	if errdefs.IsNotFound(err) {
		return nil // it is gone, and Ended says so
	}
	if err == nil && r.Paused != paused {
		r.Paused = paused
		p.show(r, "")
	}
	return err
}
