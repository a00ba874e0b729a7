package engine

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	cerrdefs "github.com/containerd/errdefs"
	containertypes "github.com/docker/docker/api/types/container"
)

// removalLimit bounds removing a container.
const removalLimit = 30 * time.Second

// signalLimit is how long Docker may take to signal a container, and how long a killed container
// may take to end before more is done about it.
const signalLimit = 4 * time.Second

// Remove implements Engine. It ends a container first, and has it removed when Docker has seen its
// end: a container that is removed by force before that leaves its shim behind, for good.
func (d Docker) Remove(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removalLimit)
	defer cancel()
	orderly := d.end(ctx, id)
	// While somebody else removes it, ask again: waiting for that removal would never end if it has
	// failed, or if Docker was just done with it.
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := d.client.ContainerRemove(ctx, id, containertypes.RemoveOptions{
			Force: true, RemoveVolumes: true,
		})
		if err != nil && !isBeingRemoved(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(Patience()), backoff.WithMaxElapsedTime(0))
	if err != nil && !cerrdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove container %.12s: %w", id, err)
	}
	if !orderly {
		endShim(ctx, id)
	}
	return nil
}

func isBeingRemoved(err error) bool {
	return cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress")
}

// Patience says how long to wait before Docker is asked again for what it refuses while it is busy
// with a container.
func Patience() backoff.BackOff {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 20*time.Millisecond, time.Second
	return wait
}

// end kills a container and reports whether Docker has seen its end.
func (d Docker) end(ctx context.Context, id string) bool {
	ended := make(chan bool, 1)
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	told := d.Wait(waiting, id)
	go func() {
		err := <-told
		ended <- err == nil || cerrdefs.IsNotFound(err)
	}()
	endsSoon := func() bool {
		select {
		case seen := <-ended:
			ended <- seen
			return seen
		case <-time.After(signalLimit):
			return false
		}
	}
	// Under gVisor a paused container does not end until Docker gives up and kills what it takes
	// for its program.
	unpausing, cancel := context.WithTimeout(ctx, signalLimit)
	_ = d.client.ContainerUnpause(unpausing, id) // most are not paused
	cancel()
	err := d.Signal(ctx, id, syscall.SIGKILL)
	if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) {
		return true // gone, or not running
	}
	if endsSoon() {
		return true
	}
	if s, err := ShimOf(id); err == nil {
		s.KillAll()
	}
	return endsSoon()
}

// Signal implements Engine. Docker does not signal a container while a program is being started
// inside, and a tenant who may signal that program can stop it on its way. In that case the start
// is given up.
func (d Docker) Signal(ctx context.Context, id string, number syscall.Signal) error {
	try, cancel := context.WithTimeout(ctx, signalLimit)
	defer cancel()
	err := d.client.ContainerKill(try, id, fmt.Sprint(int(number)))
	if err == nil || try.Err() == nil || ctx.Err() != nil {
		return err
	}
	if err := d.AbortExecs(id); err != nil {
		return fmt.Errorf("cannot have Docker signal the container: %w", err)
	}
	again, cancel := context.WithTimeout(ctx, signalLimit)
	defer cancel()
	return d.client.ContainerKill(again, id, fmt.Sprint(int(number)))
}

// AbortExecs implements Engine. It kills what Docker waits for.
func (d Docker) AbortExecs(id string) error {
	s, err := ShimOf(id)
	if err == nil {
		s.KillExecs()
	}
	return err
}

// Wait implements Engine.
func (d Docker) Wait(ctx context.Context, id string) <-chan error {
	told := make(chan error, 1)
	go func() {
		reached, failed := d.client.ContainerWait(ctx, id, containertypes.WaitConditionNotRunning)
		select {
		case <-reached:
			told <- nil
		case err := <-failed:
			told <- err
		}
	}()
	return told
}

// endShim ends the shim of a container that is gone, if Docker has left it behind.
func endShim(ctx context.Context, id string) {
	for range 2 { // Docker may be about to
		s, err := ShimOf(id)
		if err != nil {
			return
		}
		if len(s.Children) == 0 {
			_ = s.Kill()
			return
		}
		s.KillAll()
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
