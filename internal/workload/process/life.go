package process

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
)

// Shutdown ends the manager's own work and waits, until ctx ends, for what is under way. Processes
// keep running. Later calls fail with the class errdefs.ErrUnavailable.
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
			// Nobody takes turns any more except callers that fail at once.
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
		return fmt.Errorf("cannot wait for operations on processes to end: %w", context.Cause(ctx))
	}
}

var errClosed = fmt.Errorf("the service is shutting down: %w", errdefs.ErrUnavailable)

// enter registers a caller until leave is called. The returned context also ends with the manager.
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

// background runs f in a goroutine of the manager. After Shutdown it does nothing and returns
// false.
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

// attempt is work that is completed even if the callers that asked for it stop waiting.
type attempt struct {
	done chan struct{} // closed at its end
	err  error         // valid then
}

// wait waits until the attempt or ctx ends.
func (a *attempt) wait(ctx context.Context) error {
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run runs f as an attempt, in the background.
func (m *Manager) run(a *attempt, f func(context.Context) error) {
	if !m.background(func(ctx context.Context) { a.err = f(ctx); close(a.done) }) {
		a.err = errClosed
		close(a.done)
	}
}

// doing is a kind of attempt that several callers can share.
type doing int

const (
	stopping doing = iota
	removing
	followingPause
	doings
)

// join runs f while it holds a process's turn, once for all callers that wait for the same kind of
// attempt to begin. So at most one has begun and one waits, however many callers ask and hang up.
func (p *process) join(what doing, f func(context.Context) error) *attempt {
	p.of.mu.Lock()
	a := p.waiting[what]
	first := a == nil
	if first {
		a = &attempt{done: make(chan struct{})}
		p.waiting[what] = a // stays after Shutdown
	}
	p.of.mu.Unlock()
	if first {
		p.of.run(a, func(ctx context.Context) error {
			err := p.take(ctx)
			p.of.mu.Lock()
			p.waiting[what] = nil // a later caller may know of something that this attempt misses
			p.of.mu.Unlock()
			if err != nil {
				return err
			}
			defer p.give()
			return f(ctx)
		})
	}
	return a
}
