package process

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Reasons for an end whose exit is not known.
const (
	vanished = "its container is gone"
	rebooted = "the host was restarted"
	left     = "its host was lost, or gave the user to another"
)

// conclude records that the process's instance has ended, removes it, and plans the next start if
// there is to be one; the turn is held. A reason means that it is not known how the instance ended.
func (m *Manager) conclude(ctx context.Context, p *process, exit Exit, reason string) {
	i, now := p.instance(), m.now()
	r := p.record
	r.setExit(exit, reason, now)
	if r.DesiredState == Stopped {
		r.Status = Stopped
	}
	if r.wanted() {
		if r.LastExitedAt.Sub(r.LastStartedAt) >= stableAfter || p.moved {
			r.BackoffMs = 0
		}
		if !p.moved {
			r.waitToRestart(now)
		}
	}
	m.observe(p, r, ended)
	m.discard(ctx, p, i)
	if r.wanted() {
		m.arm(p)
	} else {
		m.retire(p)
	}
}

// concludeEnded calls conclude with the exit that the Runner reports for an ended instance; the
// turn is held. After an error nothing is recorded.
func (m *Manager) concludeEnded(ctx context.Context, p *process, i Instance) error {
	asking, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	exit, err := m.cfg.Runner.Exit(asking, i)
	switch {
	case err == nil:
		m.conclude(ctx, p, exit, "")
	case errdefs.IsNotFound(err):
		m.conclude(ctx, p, Exit{}, vanished)
	default:
		return err
	}
	return nil
}

func (r *Record) setExit(exit Exit, reason string, now time.Time) {
	why := cmp.Or(reason, exit.Reason)
	r.Status, r.Paused, r.Reason, r.ExitReason = Exited, false, why, why
	r.Instance, r.BootID, r.PID = Identity{}, "", 0
	r.LastExitedAt = exit.At.UTC()
	if exit.At.IsZero() {
		r.LastExitedAt = now
	}
	r.ExitCode, r.Signal, r.OOMKilled = nil, "", exit.OOM
	switch {
	case reason != "":
	case exit.Signal != 0:
		if r.Signal = unix.SignalName(exit.Signal); r.Signal == "" {
			r.Signal = fmt.Sprintf("SIG%d", exit.Signal)
		}
	default:
		r.ExitCode = &exit.Code
	}
	r.LostBytes += exit.Lost
}

// arm plans the next start of a process; the turn is held.
func (m *Manager) arm(p *process) {
	user := p.record.UserID
	p.timer = m.cfg.Clock.AfterFunc(p.record.restartDelay(m.now()), func() {
		m.background(func(ctx context.Context) { m.restart(ctx, user, p) })
	})
}

// restart starts a user's process again. It does nothing if the timer was cancelled after it had
// fired.
func (m *Manager) restart(ctx context.Context, user string, p *process) {
	if !m.restarting.Begin(user, ctx.Done()) {
		return
	}
	defer m.restarting.End(user)
	if p.take(ctx) != nil {
		return
	}
	defer p.give()
	if p.timer == nil {
		return
	}
	p.timer = nil
	r := p.record
	if m.paused(r) {
		return // FollowPause plans it again
	}
	m.restarts.Add(1)
	r.RestartCount++
	r.NextRestartAt = time.Time{}
	m.observe(p, r, "")
	err := m.relaunch(ctx, p)
	if err == nil || m.ctx.Err() != nil {
		return // it runs, or the next service starts it
	}
	r = p.record
	r.Reason = "it cannot be started again: " + err.Error()
	r.waitToRestart(m.now())
	m.observe(p, r, notStarted)
	m.arm(p)
}

func (m *Manager) relaunch(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := m.clearLeftovers(ctx, p); err != nil {
		return err
	}
	var secrets map[string]string
	if p.record.HasSecrets {
		sealed, err := m.store.sealed(p.record)
		if err != nil {
			return err
		}
		if secrets, err = m.vault.open(p.id, sealed); err != nil {
			return err
		}
	}
	return m.launch(ctx, p, secrets, nil)
}
