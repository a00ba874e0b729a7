package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// RemovalLimit bounds removing a container; removing continues while the service shuts down.
const RemovalLimit = 30 * time.Second

// removeFound removes a container from Docker's list, with everything that it had in the pool. It
// blocks until Docker has done it.
func (e *Executor) removeFound(id, spool string) error {
	if err := e.removeContainer(id); err != nil {
		return err // its record is still needed
	}
	return errors.Join(removeSpool(spool), e.unbind(id), e.removePooled(filepath.Dir(spool)))
}

// removeContainer removes a container once at a time: calls that come meanwhile share the result.
// If Docker 20.10 is asked twice at one moment, it may lose the container's name and keep the rest,
// until Docker is started again. It is no error if the container is gone already.
func (e *Executor) removeContainer(id string) error {
	_, err, _ := e.removals.Do(id, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.ctx), RemovalLimit)
		defer cancel()
		if c := e.known(id); c != nil {
			done, err := c.UseToRemove(ctx)
			if err != nil {
				return nil, fmt.Errorf(
					"cannot remove container %.12s, which is paused while another one starts: %w",
					id, err)
			}
			defer done()
		}
		return nil, e.engine.Remove(ctx, id)
	})
	return err
}

// signal sends a signal to a container that others may hold paused, or that was paused on request.
func (e *Executor) signal(ctx context.Context, id string, number syscall.Signal) error {
	if c := e.known(id); c != nil {
		done, err := c.UseToSignal(ctx)
		if errors.Is(err, life.ErrLeft) { // it may be held all the same, and a signal resumes it
			done, err = c.UseToRemove(ctx)
		}
		if err != nil {
			return err
		}
		defer done()
	}
	return e.engine.Signal(ctx, id, number)
}

// doneWithin reports whether a result arrives within limit.
func doneWithin(told <-chan error, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-told:
		return err == nil || cerrdefs.IsNotFound(err)
	case <-timer.C:
		return false
	}
}
