package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	cerrdefs "github.com/containerd/errdefs"
)

// pauseLimit bounds pausing a container, and resuming it, beside others on a busy machine.
const pauseLimit = 30 * time.Second

// pauseTries is how often pausing is tried: runc fails to freeze a version 1 cgroup in which
// processes appear meanwhile ("unable to freeze"), as on a busy machine.
const pauseTries = 5

// Pause implements Engine. Docker carries on when its caller leaves, and could then pause the
// container after it was asked to resume it; so this caller does not leave.
func (d Docker) Pause(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseLimit)
	defer cancel()
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 50 * time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		return struct{}{}, d.pauseOnce(ctx, id)
	}, backoff.WithBackOff(wait), backoff.WithMaxTries(pauseTries))
	return err
}

func (d Docker) pauseOnce(ctx context.Context, id string) error {
	err := d.client.ContainerPause(ctx, id)
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	found, inspectErr := d.client.ContainerInspect(ctx, id)
	if cerrdefs.IsNotFound(inspectErr) {
		return nil
	}
	now := found.State
	if inspectErr == nil && now != nil && (now.Paused || !now.Running) {
		return nil
	}
	return err
}

// Resume implements Engine.
func (d Docker) Resume(ctx context.Context, id string) error {
	trying, cancel := context.WithTimeout(ctx, pauseLimit)
	defer cancel()
	err := d.client.ContainerUnpause(trying, id)
	if err == nil || cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) { // gone, or not paused
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, signalLimit) // the other one may be over
	defer cancel()
	found, inspectErr := d.client.ContainerInspect(asking, id)
	if cerrdefs.IsNotFound(inspectErr) {
		return nil
	}
	if inspectErr == nil && found.State != nil && !found.State.Paused {
		return nil
	}
	if inspectErr != nil || found.State == nil {
		return fmt.Errorf("cannot resume container %.12s: %w", id, err)
	}
	if !d.end(ctx, id) {
		return fmt.Errorf("cannot resume container %.12s, nor end it: %w", id, err)
	}
	return fmt.Errorf("cannot resume container %.12s, which was ended: %w", id, err)
}
