package dnsfilter

import (
	"context"
	"sync"
	"time"
)

// flights are the lookups under way, one for each key: later callers with the same key wait for the
// same lookup. A lookup belongs to the group and not to its first caller, so it outlives that
// caller's context.
type flights struct {
	mu     sync.Mutex
	byKey  map[string]*flight
	closed bool
	wg     sync.WaitGroup
}

type flight struct {
	cancel context.CancelFunc
	done   chan struct{}
	result *entry // once done is closed; nil if it was given up
}

// do returns what run returns for a key; at most one run for a key is under way. It fails when ctx
// ends, and with errClosed once closed.
func (g *flights) do(ctx context.Context, key string, timeout time.Duration,
	run func(context.Context) *entry) (*entry, error) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, errClosed
	}
	f := g.byKey[key]
	if f == nil {
		f = g.begin(ctx, key, timeout, run)
	}
	g.mu.Unlock()
	select {
	case <-f.done:
		if f.result == nil {
			return nil, errClosed
		}
		return f.result, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// start begins run for a key, without waiting for it, if none is under way.
func (g *flights) start(ctx context.Context, key string, timeout time.Duration,
	run func(context.Context) *entry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed && g.byKey[key] == nil {
		g.begin(ctx, key, timeout, run)
	}
}

// begin starts a lookup. The lock is held.
func (g *flights) begin(ctx context.Context, key string, timeout time.Duration,
	run func(context.Context) *entry) *flight {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	f := &flight{cancel: cancel, done: make(chan struct{})}
	g.byKey[key] = f
	g.wg.Go(func() {
		defer cancel()
		f.result = run(ctx)
		g.mu.Lock()
		delete(g.byKey, key)
		g.mu.Unlock()
		close(f.done)
	})
	return f
}

// close ends all lookups and waits for them.
func (g *flights) close() {
	g.mu.Lock()
	g.closed = true
	for _, f := range g.byKey {
		f.cancel()
	}
	g.mu.Unlock()
	g.wg.Wait()
}
