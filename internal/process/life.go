package process

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
)

// Shutdown ends what the manager does by itself and waits, until ctx ends, for what is under way.
// Processes go on running. Calls that come later fail with the class errdefs.ErrUnavailable.
func (m *Manager) Shutdown(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel(errClosed)
	m.queue.stop()
	done := make(chan struct{})
	go func() {
		m.work.Wait()
		for _, p := range m.all() {
			// Nobody takes turns any more but callers who fail at once.
			if p.take(ctx) == nil {
				p.cancelTimer()
				p.give()
			}
		}
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for what is done to processes: %w", context.Cause(ctx))
	}
}

var errClosed = fmt.Errorf("the service is shutting down: %w", errdefs.ErrUnavailable)

// enter counts a caller in; leave counts it out. Its context also ends with the manager.
func (m *Manager) enter(ctx context.Context) (_ context.Context, leave func(), _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, errClosed
	}
	m.work.Add(1)
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(m.ctx, func() { cancel(errClosed) })
	return joined, func() { stop(); cancel(nil); m.work.Done() }, nil
}

// background does f in a goroutine of the manager's. It is false, and nothing is done, after Shutdown.
func (m *Manager) background(f func(context.Context)) bool {
	ctx, leave, err := m.enter(m.ctx)
	if err != nil {
		return false
	}
	go func() {
		defer leave()
		f(ctx)
	}()
	return true
}

// attempt does f to its end, also when the caller stops waiting.
func (m *Manager) attempt(ctx context.Context, f func(context.Context) error) error {
	result := make(chan error, 1)
	if !m.background(func(ctx context.Context) { result <- f(ctx) }) {
		return errClosed
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
