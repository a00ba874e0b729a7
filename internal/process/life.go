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

// attempt is something that is done to its end, also when the callers who asked for it stop waiting.
type attempt struct {
	done chan struct{} // closed at its end
	err  error         // valid then
}

// wait waits for the end of what is done, or of ctx.
func (a *attempt) wait(ctx context.Context) error {
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run does f as an attempt, in the background.
func (m *Manager) run(a *attempt, f func(context.Context) error) {
	if !m.background(func(ctx context.Context) { a.err = f(ctx); close(a.done) }) {
		a.err = errClosed
		close(a.done)
	}
}

// doing is what may be done to a process for several callers at once.
type doing int

const (
	stopping doing = iota
	removing
	followingPause
	doings
)

// join has f done with the turn of a process, together with the others who wait for the same to begin. So one at most has
// begun and one waits, however many callers ask and hang up.
func (m *Manager) join(p *process, what doing, f func(context.Context) error) *attempt {
	m.mu.Lock()
	a := p.waiting[what]
	first := a == nil
	if first {
		a = &attempt{done: make(chan struct{})}
		p.waiting[what] = a // for good after Shutdown
	}
	m.mu.Unlock()
	if first {
		m.run(a, func(ctx context.Context) error {
			err := p.take(ctx)
			m.mu.Lock()
			p.waiting[what] = nil // whoever comes now may know what this one does not
			m.mu.Unlock()
			if err != nil {
				return err
			}
			defer p.give()
			return f(ctx)
		})
	}
	return a
}
