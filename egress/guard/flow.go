package guard

import (
	"context"
	"net"
	"slices"
	"sync"
)

// flow is one connection of a client, with everything that was opened on its behalf.
type flow struct {
	guard  *Guard
	client Client
	who    identity
	tenant *tenant // once the flow has been admitted
	port   uint16
	plain  bool

	// web is what an HTTP connection needs; only its own goroutine uses it.
	web *web

	mu      sync.Mutex
	aborted bool
	cancel  context.CancelFunc
	socks   []*net.TCPConn
}

// context ends when the flow is aborted.
func (f *flow) context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(parent)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancel = cancel
	if f.aborted {
		cancel()
	}
	return ctx
}

// own makes a socket part of the flow. One that comes too late is closed, and false returned.
func (f *flow) own(c *net.TCPConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.aborted {
		reset(c)
		return false
	}
	f.socks = append(f.socks, c)
	return true
}

// disown closes a socket of the flow.
func (f *flow) disown(c *net.TCPConn) error {
	f.mu.Lock()
	f.socks = slices.DeleteFunc(f.socks, func(one *net.TCPConn) bool { return one == c })
	f.mu.Unlock()
	return c.Close()
}

// abort ends the flow at once: what is still to be sent is thrown away.
func (f *flow) abort() { f.end(reset) }

// leave ends the flow in good order. It is called once, by the last goroutine that serves the flow.
func (f *flow) leave() {
	f.end(func(c *net.TCPConn) { _ = c.Close() })
	f.guard.clients.leave(f)
}

func (f *flow) end(how func(*net.TCPConn)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.aborted = true
	if f.cancel != nil {
		f.cancel()
	}
	for _, c := range f.socks {
		how(c)
	}
	f.socks = nil
}
