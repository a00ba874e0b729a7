package persistent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
)

// Durable processes may run in the container of a registered sandbox. Package process decides about
// them, package runner has their directories, and here is what the container is told. It says when
// one has ended, so each is followed from its start, or from when it is found after a restart.

// StartProcess starts the durable process of an id in a registered sandbox, which it has run. It
// calls prepare with the container's id and the environment of commands there, to write what is to
// be started into the process's directory. It blocks until the process has started, or has ended.
// After an error it does not run.
func (s *Sandboxes) StartProcess(ctx context.Context, box registry.Sandbox, token quota.Token,
	id string, prepare func(container string, env map[string]string) error) (container string,
	err error) {
	b, err := s.Of(box, token)
	if err != nil {
		return "", err
	}
	defer b.entry.enter()()
	var stream control.Stream
	for range insideTries {
		if _, container, err = b.wake(ctx); err != nil {
			return "", err
		}
		if err := prepare(container, b.entry.recorded().Env); err != nil {
			return "", err
		}
		stream, err = s.askProcess(ctx, container, id, control.Request{Do: control.Begin})
		if !errors.Is(err, life.ErrPaused) {
			break
		}
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalLimit)
		defer cancel()
		if failed := s.StopProcess(ctx, container, id, syscall.SIGKILL, endSlack); failed != nil {
			err = errors.Join(err, failed) // it may have begun
		}
		if cerrdefs.IsNotFound(err) {
			err = fmt.Errorf("sandbox %q has just lost its container: try again: %w", box.ID,
				cerrdefs.ErrUnavailable)
		}
		return "", err
	}
	if !s.claimProcess(id) { // by one that looks for an earlier run, and then for this one
		_ = stream.Reset()
		return container, nil
	}
	s.watchProcess(id, stream)
	return container, nil
}

// claimProcess takes on to follow a process, and reports false if that is done already.
func (s *Sandboxes) claimProcess(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.processes[id] {
		return false
	}
	s.processes[id] = true
	return true
}

// FollowProcess follows a durable process that was found running, unless it is followed already. In
// a sandbox that is paused, that is done once it is resumed.
func (s *Sandboxes) FollowProcess(container, id string) {
	e := s.entryOf(container)
	if e != nil {
		e.mu.Lock()
		paused := e.record.Paused
		if paused && e.unfollowed == nil {
			e.unfollowed = map[string]bool{}
		}
		if paused {
			e.unfollowed[id] = true
		}
		e.mu.Unlock()
		if paused {
			return
		}
	}
	if !s.claimProcess(id) {
		return
	}
	s.work.Go(func() {
		if e == nil { // it is not known here yet
			s.processHasEnded(id, false)
			return
		}
		ctx, cancel := context.WithTimeout(s.life, answerLimit)
		defer cancel()
		stream, err := s.askProcess(ctx, container, id, control.Request{Do: control.Follow})
		if err != nil {
			s.processHasEnded(id, false)
			return
		}
		s.watchProcess(id, stream)
	})
}

// followLater has those processes found again that were not followed while the sandbox was paused,
// as it is so no more.
func (e *entry) followLater() {
	e.mu.Lock()
	ids := e.unfollowed
	e.unfollowed = nil
	e.mu.Unlock()
	for id := range ids {
		e.of.cfg.Processes.Ended(id)
	}
}

// isGone reports whether the sandbox is gone for callers.
func (e *entry) isGone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}

// entryOf returns the entry of the sandbox that has a container; nil if there is none.
func (s *Sandboxes) entryOf(container string) *entry {
	for _, e := range s.entries() {
		e.mu.Lock()
		is := e.container == container
		e.mu.Unlock()
		if is {
			return e
		}
	}
	return nil
}

// Exhausted returns the limit that has ended a container of a registered sandbox; nil for none, or
// if that is not known any more.
func (s *Sandboxes) Exhausted(container string) *dockerexec.Exhausted {
	for _, e := range s.entries() {
		e.mu.Lock()
		found, in, own := e.exhausted, e.exhaustedIn, e.container
		e.mu.Unlock()
		switch container {
		case in:
			return found
		case own:
			return e.whyEnded(container)
		}
	}
	return nil
}

// watchProcess tells of the end of a process that was claimed.
func (s *Sandboxes) watchProcess(id string, stream control.Stream) {
	s.work.Go(func() {
		defer context.AfterFunc(s.life, func() { _ = stream.Reset() })()
		var exit wire.Exit
		err := wire.ReadMessage(stream, wire.KindExit, &exit)
		_ = stream.Close()
		s.processHasEnded(id, err == nil)
	})
}

// followAgain is how long after a broken connection a process is looked at.
const followAgain = time.Second

// processHasEnded gives a claimed process up, and has it found out what became of it: at once if it
// is known to have ended.
func (s *Sandboxes) processHasEnded(id string, known bool) {
	if !known {
		select {
		case <-time.After(followAgain):
		case <-s.life.Done():
			return
		}
	}
	s.mu.Lock()
	delete(s.processes, id)
	s.mu.Unlock()
	s.cfg.Processes.Ended(id)
}

// ProcessContainers returns the containers that may have durable processes, also those that have
// ended.
func (s *Sandboxes) ProcessContainers(
	ctx context.Context) ([]dockerexec.ProcessContainer, error) {
	all, err := s.cfg.Executor.Persistent(ctx)
	return slices.DeleteFunc(all, func(c dockerexec.ProcessContainer) bool {
		return c.Spec.Process.Dir == ""
	}), err
}

// StopProcess sends a signal to a durable process in a container, kills what is left of it after
// the grace, and waits for its end. It returns nil if it has ended, or the container is gone. A
// sandbox that is paused is resumed for that, and paused again.
func (s *Sandboxes) StopProcess(ctx context.Context, container, id string, signal syscall.Signal,
	grace time.Duration) error {
	if !s.allFound() {
		if err := s.find(ctx); err != nil {
			return err
		}
	}
	e := s.entryOf(container)
	if e == nil {
		return nil // it is gone, or another host's
	}
	defer e.enter()()
	for _, r := range []control.Request{
		{Do: control.Signal, Signal: int(signal)}, {Do: control.Signal, Signal: int(syscall.SIGKILL)},
	} {
		stream, err := s.askProcess(ctx, container, id, r)
		if errors.Is(err, life.ErrPaused) {
			defer s.Registered(e.recorded().user()) // so it is paused again
			if err = (&Sandbox{entry: e}).Resume(ctx); err == nil {
				stream, err = s.askProcess(ctx, container, id, r)
			}
		}
		if err == nil {
			_ = stream.Close()
			err = s.awaitProcess(ctx, container, id, grace)
		}
		// With the container, or with a sandbox that is being removed, all that is in it ends.
		if cerrdefs.IsNotFound(err) || err != nil &&
			(e.isGone() || !s.cfg.Executor.PersistentRuns(container)) {
			return nil
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		grace = endSlack
	}
	return fmt.Errorf("process %s does not end: %w", id, cerrdefs.ErrUnavailable)
}

// awaitProcess waits until a process has ended: then the error is errdefs.ErrNotFound.
func (s *Sandboxes) awaitProcess(ctx context.Context, container, id string,
	limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stream, err := s.askProcess(ctx, container, id, control.Request{Do: control.Follow})
	if err != nil {
		return err
	}
	defer stream.Reset() //nolint:errcheck // it has said all, or is broken
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	var exit wire.Exit
	err = wire.ReadMessage(stream, wire.KindExit, &exit)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && s.cfg.Executor.PersistentRuns(container):
		return fmt.Errorf("cannot tell whether process %s has ended: %w", id, err)
	}
	return fmt.Errorf("process %s has ended: %w", id, cerrdefs.ErrNotFound)
}

// askProcess sends a request about a durable process, and returns the stream on which more may
// follow. The error is errdefs.ErrNotFound if there is none, or no container.
func (s *Sandboxes) askProcess(ctx context.Context, container, id string,
	r control.Request) (stream control.Stream, err error) {
	if stream, err = s.cfg.Executor.AskPersistent(ctx, container); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Unix(1, 0)) })()
	r.Process = id
	var answer control.Answer
	if err = wire.WriteMessage(stream, wire.KindRequest, r); err == nil {
		err = wire.ReadMessage(stream, wire.KindAnswer, &answer)
	}
	if err == nil {
		err = faultOf(answer)
	}
	if err != nil {
		_ = stream.Reset()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return stream, nil
}
