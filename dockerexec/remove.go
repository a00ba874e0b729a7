package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	cerrdefs "github.com/containerd/errdefs"
	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/daycare-run/sandbox/internal/dockerd"
)

// removalLimit bounds removing a container; removing continues while the service shuts down.
const removalLimit = 30 * time.Second

// signalLimit is how long Docker may take to signal a container, and how long a killed container may take to end
// before more is done about it.
const signalLimit = 4 * time.Second

// remove removes a container with its spool and everything that runs in it. It is no error if the container is gone
// already. It blocks until Docker has done it.
func (e *Executor) remove(id, spool string) error {
	return errors.Join(e.removeContainer(id), removeSpool(spool))
}

// removeFound is remove for a container from Docker's list, with everything that it had in the pool.
func (e *Executor) removeFound(id, spool string) error {
	return errors.Join(e.remove(id, spool), e.unbind(id), e.removePooled(filepath.Dir(spool)))
}

// removeContainer removes a container once at a time: calls that come meanwhile share the result. If Docker 20.10 is
// asked twice at one moment, it may lose the container's name and keep the rest, until Docker is started again.
func (e *Executor) removeContainer(id string) error {
	_, err, _ := e.removals.Do(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), removalLimit)
		defer cancel()
		done, err := e.pauses.remove(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("cannot remove container %.12s, which is paused while another one starts: %w", id, err)
		}
		defer done()
		return nil, removeContainer(ctx, e.docker, id)
	})
	return err
}

// removeContainer ends a container first, and has it removed when Docker has seen its end: a container that is removed
// by force before that leaves its shim behind, for good.
func removeContainer(ctx context.Context, docker *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(ctx, removalLimit)
	defer cancel()
	orderly := end(ctx, docker, id)
	// While somebody else removes it, ask again: waiting for that removal would never end if it has failed, or if Docker
	// was just done with it.
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := docker.ContainerRemove(ctx, id, containertypes.RemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !(cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress")) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(patience()), backoff.WithMaxElapsedTime(0))
	if err != nil && !cerrdefs.IsNotFound(err) {
		return fmt.Errorf("cannot remove container %.12s: %w", id, err)
	}
	if !orderly {
		endShim(ctx, id)
	}
	return nil
}

// patience says how long to wait before Docker is asked again for what it refuses while it is busy with a container.
func patience() backoff.BackOff {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 20*time.Millisecond, time.Second
	return wait
}

// end kills a container and reports whether Docker has seen its end.
func end(ctx context.Context, docker *client.Client, id string) bool {
	ended := waitFor(ctx, docker, id, containertypes.WaitConditionNotRunning)
	// Under gVisor a paused container does not end until Docker gives up and kills what it takes for its program.
	unpausing, cancel := context.WithTimeout(ctx, signalLimit)
	_ = docker.ContainerUnpause(unpausing, id) // most are not paused
	cancel()
	err := sendSignal(ctx, docker, id, syscall.SIGKILL)
	if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) {
		return true // gone, or not running
	}
	if doneWithin(ended, signalLimit) {
		return true
	}
	if s, err := dockerd.ShimOf(id); err == nil {
		s.KillAll()
	}
	return doneWithin(ended, signalLimit)
}

// signal is sendSignal for a container that others may hold paused, or that was paused on request.
func (e *Executor) signal(ctx context.Context, id string, number syscall.Signal) error {
	done, err := e.pauses.wake(ctx, e.docker, id, refuseNobody)
	if err != nil {
		return err
	}
	defer done()
	return sendSignal(ctx, e.docker, id, number)
}

// sendSignal sends a signal to a container's first program. Docker does not do so while a program is being started
// inside, and a tenant who may signal that program can stop it on its way. In that case the start is given up.
func sendSignal(ctx context.Context, docker *client.Client, id string, number syscall.Signal) error {
	try, cancel := context.WithTimeout(ctx, signalLimit)
	defer cancel()
	err := docker.ContainerKill(try, id, fmt.Sprint(int(number)))
	if err == nil || try.Err() == nil || ctx.Err() != nil {
		return err
	}
	if err := giveUpExecs(id); err != nil {
		return fmt.Errorf("cannot have Docker signal the container: %w", err)
	}
	again, cancel := context.WithTimeout(ctx, signalLimit)
	defer cancel()
	return docker.ContainerKill(again, id, fmt.Sprint(int(number)))
}

// giveUpExecs kills what Docker waits for while it starts a program in a container.
func giveUpExecs(id string) error {
	s, err := dockerd.ShimOf(id)
	if err == nil {
		s.KillExecs()
	}
	return err
}

// doneWithin reports whether a result arrives within limit.
func doneWithin(told chan error, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-told:
		told <- err // for the next caller
		return err == nil || cerrdefs.IsNotFound(err)
	case <-timer.C:
		return false
	}
}

// endShim ends the shim of a container that is gone, if Docker has left it behind.
func endShim(ctx context.Context, id string) {
	for range 2 { // Docker may be about to
		s, err := dockerd.ShimOf(id)
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

// waitFor returns a channel that gets nil when a container meets the condition, or the error of waiting. Waiting ends
// with ctx. It does not block, even if Docker does not answer.
func waitFor(ctx context.Context, docker *client.Client, id string, condition containertypes.WaitCondition) chan error {
	told := make(chan error, 1)
	go func() {
		reached, failed := docker.ContainerWait(ctx, id, condition)
		select {
		case <-reached:
			told <- nil
		case err := <-failed:
			told <- err
		}
	}()
	return told
}
