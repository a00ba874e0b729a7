package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/quota"
)

// A durable process has a container of its own, made from a Spec like any other, whose first
// program runs the command without the service. The Executor makes, finds and ends such containers,
// and sees to what they need on the host and on the network; others decide whether one should run.

// Process is what a Spec's container runs by itself. Without an ID the container waits for commands
// instead.
type Process struct {
	ID string `json:"id"`
	// Dir is a folder on the host that belongs to the agent (package creds) and is mounted at
	// launch.Dir. It holds a launch.json.
	Dir string `json:"dir"`
}

// StartProcess makes the Spec's container, in the token's turn, and lets its command begin once the
// mounts are verified and the network is open. After an error nothing is left of it.
func (e *Executor) StartProcess(ctx context.Context, spec Spec,
	token quota.Token) (ProcessContainer, error) {
	return e.startAlone(ctx, spec, token, "process")
}

// startAlone starts a container that runs without the service: that of a process, or a persistent
// one. noun is its name in errors.
func (e *Executor) startAlone(ctx context.Context, spec Spec, token quota.Token,
	noun string) (started ProcessContainer, err error) {
	done, err := e.cfg.Quotas.Turn(ctx, quota.Account{User: spec.User, Token: token})
	if err != nil {
		return ProcessContainer{}, fmt.Errorf("cannot start the %s: %w", noun, err)
	}
	defer done()
	c := e.newContainer(spec, spec.Fingerprint(), "", false)
	c.Do(life.Begin, nil) // before anybody can find it: from now on it can be aborted
	e.mu.Lock()
	closed := e.closed
	e.enlist(c)
	e.mu.Unlock()
	if closed {
		err = refusedStart{fmt.Errorf("the service is shutting down: %w", cerrdefs.ErrUnavailable)}
	} else {
		err = e.establish(ctx, c, false)
	}
	if err == nil {
		started, err = e.InspectProcess(ctx, c.ID())
	}
	if err == nil && c.Do(life.Succeed, nil) == life.Done {
		e.lookUpSoon(c)
		return started, nil
	}
	if err == nil && c.is(life.Ended) { // its command has ended by itself already
		e.free(c, true)
		e.work.Go(c.hangUp)
		return started, nil
	}
	if err == nil { // it was expelled, or its network was taken away
		err = ErrLost
	}
	c.Do(life.Fail, err)
	gone := e.Remove(c)
	if gone != nil {
		e.RemoveLater(c)
	}
	if refused, is := errors.AsType[refusedStart](err); is {
		return ProcessContainer{}, fmt.Errorf("cannot start the %s: %w", noun, refused.error)
	}
	return ProcessContainer{}, fmt.Errorf("cannot start the %s: %s", noun,
		spec.withoutHostPaths(e.engine.Explain(errors.Join(err, gone)).Error()))
}

// launch lets the command of a process's container begin, or waits until a persistent one takes
// commands.
func (e *Executor) launch(ctx context.Context, c *Container) error {
	if _, err := c.net.Bind(ctx, c.ID()); err != nil {
		return err
	}
	defer c.forgetFirst()
	if err := e.guard.Verify(ctx, c.Life, c.toVerify(), func(targets []string) ([]string, error) {
		answer, err := session.Order(ctx, c.first, launch.Order{AccessTimes: targets})
		return answer.AccessTimes, err
	}); err != nil {
		return err
	}
	if c.spec.Persistent != "" {
		agent, err := e.agentOf(ctx, c, &c.asks, session.Bridge)
		if err == nil && c.spec.IsPooled() && e.ahead.Load() {
			err = agent.AwaitShell(ctx)
		}
		return err
	}
	// The command may have ended before its answer is read: that ends ctx, and is no fault.
	if _, err := session.Order(context.WithoutCancel(ctx), c.first,
		launch.Order{Begin: true}); err != nil {
		return fmt.Errorf("cannot let the command begin: %w", err)
	}
	return nil
}

// endingLimit is how long Docker may take to notice that a container has ended.
const endingLimit = 5 * time.Second

// StopProcess sends a signal to the first program, which passes it on to everything it has started,
// and kills what is left after the grace period. It blocks until the container has ended.
func (e *Executor) StopProcess(ctx context.Context, id string, signal syscall.Signal,
	grace time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := e.engine.Wait(ctx, id)
	fault := fmt.Errorf("the process does not end, although it was killed: %w",
		cerrdefs.ErrInternal)
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{signal, grace}, {syscall.SIGKILL, RemovalLimit}} {
		err := e.signal(ctx, id, step.signal)
		if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) { // gone, or not running
			return nil
		}
		wait := step.wait
		if err != nil {
			// A runtime fails like this when the container has just ended and Docker does not know
			// it yet.
			wait = min(wait, endingLimit)
			fault = fmt.Errorf("cannot signal the process: %w", e.engine.Explain(err))
		}
		timer := time.NewTimer(wait)
		select {
		case err := <-ended:
			timer.Stop()
			if err != nil && !cerrdefs.IsNotFound(err) {
				return fmt.Errorf("cannot wait for the process to end: %w", err)
			}
			return nil
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
	return fault
}

// RemoveProcess removes a process's container, running or not, with all that it had. It blocks
// until Docker has done it. After an error it can be removed again.
func (e *Executor) RemoveProcess(ctx context.Context, id string) error {
	c := e.known(id)
	if c == nil { // an earlier service's, which has ended
		e.mu.Lock()
		record, bound := e.bound[id]
		e.mu.Unlock()
		if err := e.removeContainer(id); err != nil || !bound {
			return err
		}
		return errors.Join(e.unbind(id), e.DropPooled(record.Pooled))
	}
	c.Do(life.Remove, nil) // or it is Leaving already
	select {
	case <-c.Settled(): // before, its maker is at it
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return e.Remove(c)
}
