package process

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Reasons for an end whose exit is not known. vanished is also what a host says that was fenced,
// and holds the user again without having been restarted.
const (
	vanished = "its container is gone"
	rebooted = "the host was restarted"
	left     = "its host was lost, or gave the user to another"
)

// conclude records that the process's instance has ended, removes it, and plans the next start if
// there is to be one; the turn is held. A reason means that it is not known how the instance ended.
func (p *process) conclude(ctx context.Context, exit Exit, reason string) {
	i, now := p.instance(), p.of.now()
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
	p.observe(r, ended)
	p.discard(ctx, i)
	if r.wanted() {
		p.arm()
	} else {
		p.retire()
	}
}

// concludeEnded calls conclude with the exit that the Runner reports for an ended instance; the
// turn is held. After an error nothing is recorded.
func (p *process) concludeEnded(ctx context.Context, i Instance) error {
	asking, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	exit, err := p.of.cfg.Runner.Exit(asking, i)
	switch {
	case err == nil:
		p.conclude(ctx, exit, "")
	case errdefs.IsNotFound(err):
		p.conclude(ctx, Exit{}, vanished)
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
func (p *process) arm() {
	user := p.record.UserID
	p.timer = p.of.cfg.Clock.AfterFunc(p.record.restartDelay(p.of.now()), func() {
		p.of.background(func(ctx context.Context) { p.restart(ctx, user) })
	})
}

// restart starts a user's process again. It does nothing if the timer was cancelled after it had
// fired.
func (p *process) restart(ctx context.Context, user string) {
	if !p.of.restarting.Begin(user, ctx.Done()) {
		return
	}
	defer p.of.restarting.End(user)
	if p.take(ctx) != nil {
		return
	}
	defer p.give()
	if p.timer == nil {
		return
	}
	p.timer = nil
	r := p.record
	if p.of.paused(r) {
		return // FollowPause plans it again
	}
	p.of.restarts.Add(1)
	r.RestartCount++
	r.NextRestartAt = time.Time{}
	p.observe(r, "")
	err := p.relaunch(ctx)
	if err == nil || p.of.ctx.Err() != nil {
		return // it runs, or the next service starts it
	}
	r = p.record
	r.Reason = "it cannot be started again: " + err.Error()
	r.waitToRestart(p.of.now())
	p.observe(r, notStarted)
	p.arm()
}

func (p *process) relaunch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := p.clearLeftovers(ctx); err != nil {
		return err
	}
	var secrets map[string]string
	if p.record.HasSecrets {
		sealed, err := p.of.store.sealed(p.record)
		if err != nil {
			return err
		}
		if secrets, err = openSecrets(p.of.vault, p.id, sealed); err != nil {
			return err
		}
	}
	return p.launch(ctx, secrets, nil)
}
