package guard

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// owned are the sockets of a flow, which end together.
type owned struct {
	ended  atomic.Bool // before anything is closed, so that no turn is used any more
	mu     sync.Mutex  // guards what follows
	cancel context.CancelFunc
	socks  []*net.TCPConn
}

// context returns a context that ends with the sockets.
func (o *owned) context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(parent)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.cancel = cancel
	if o.ended.Load() {
		cancel()
	}
	return ctx
}

// own makes a socket end with the others. If they have ended already, it closes the socket and
// reports false.
func (o *owned) own(c *net.TCPConn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended.Load() {
		reset(c)
		return false
	}
	o.socks = append(o.socks, c)
	return true
}

// disown closes one of the sockets.
func (o *owned) disown(c *net.TCPConn) error {
	o.mu.Lock()
	o.socks = slices.DeleteFunc(o.socks, func(one *net.TCPConn) bool { return one == c })
	o.mu.Unlock()
	return c.Close()
}

// abort ends the sockets at once: what is still to be sent is thrown away. It waits for turns that
// are under way.
func (o *owned) abort() { o.end(reset) }

// close ends them in good order.
func (o *owned) close() { o.end(func(c *net.TCPConn) { _ = c.Close() }) }

func (o *owned) end(how func(*net.TCPConn)) {
	o.ended.Store(true)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cancel != nil {
		o.cancel()
	}
	for _, c := range o.socks {
		how(c)
	}
	o.socks = nil
}

// reset closes a connection and discards what is still to be sent: the peer gets a reset, and
// nothing more is sent.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
