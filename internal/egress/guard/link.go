package guard

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"
)

// link is a client's TLS connection and the one to its origin. next is what it does when something happens to
// either: it goes as far as it can without waiting.
type link struct {
	flow           *flow
	poller         *poller
	client, origin end
	next           func(*link)
	closed         atomic.Bool

	// until is when late is called; see poller.within.
	until time.Time
	late  func(*link)

	hello     *hello
	name      string // that the hello asks for
	addrs     []netip.Addr
	connectBy time.Time // when no further address is tried
	last      *refusal  // why no address could be connected to so far
	cancel    context.CancelFunc
	answer    []byte // the server's first
	unheard   int    // how many bytes a refused client may still send
	// down is what comes from the origin, up what goes there.
	down, up stream
	// to is the origin's address while a port of ours is taken for it; endedFirst says that the kernel keeps it.
	to         netip.AddrPort
	endedFirst bool
	queued     bool // for its user's turn
	continues  bool // its last turn ended before it had done all it could
}

// newLink makes a link of p's for a connection that was accepted. Any goroutine may call it. It returns nil for
// one that must end now.
func newLink(p *poller, fd int, source netip.Addr) *link {
	l := &link{flow: &flow{guard: p.guard, port: p.guard.cfg.TLS.Port}, poller: p, next: (*link).hear}
	l.client.fd, l.origin.fd = fd, -1
	l.flow.cut = func() { p.post(l.reset) }
	if !l.flow.enter(p.life, fd, source, localAddr(fd)) {
		return nil
	}
	return l
}

// begin is the first thing that a link does, unless it was reset meanwhile.
func (l *link) begin() {
	if l.closed.Load() {
		return
	}
	p := l.poller
	p.links[l] = true
	l.hello = &hello{limit: p.guard.cfg.Limits.HelloBytes, room: l.flow.hear}
	p.within(l, p.guard.cfg.Limits.HelloTimeout, (*link).tooSlow)
	if err := p.join(l, &l.client, l.client.fd); err != nil {
		l.reset()
	}
}

func (l *link) step() {
	if !l.closed.Load() {
		l.next(l)
	}
}

// wait is what a link does while it waits for something that happens elsewhere.
func (l *link) wait() { l.left() }

// finish ends the link in good order, reset cuts it off.
func (l *link) finish() { l.close(rawClose) }
func (l *link) reset()  { l.close(rawReset) }

func (l *link) close(how func(fd int)) {
	if !l.closed.CompareAndSwap(false, true) {
		return
	}
	if l.cancel != nil {
		l.cancel()
	}
	p := l.poller
	p.part(&l.client, how)
	l.partOrigin(how)
	for _, s := range []*stream{&l.up, &l.down} {
		p.returnPipe(s)
	}
	delete(p.timed, l)
	delete(p.links, l)
	p.guard.clients.leave(l.flow)
}

// abandon ends a link whose poller has ended before it could begin. The last that the poller did may have been
// to reset it.
func (l *link) abandon() {
	if l.closed.CompareAndSwap(false, true) {
		rawReset(l.client.fd)
		l.flow.guard.clients.leave(l.flow)
	}
}

// hear reads the first hello.
func (l *link) hear() {
	name, refused, done := l.asked()
	if !done {
		return
	}
	l.name = name
	if refused == nil && !l.flow.client.Allows(name) {
		refused = &refusal{verdict: Denied, reason: reasonNotAllowed}
	}
	l.flow.guard.clients.decided(l.flow)
	if refused != nil {
		l.refuse(refused)
		return
	}
	l.resolve()
}

func (l *link) tooSlow() {
	l.flow.guard.clients.decided(l.flow)
	l.refuse(malformed(reasonTooSlow))
}

// asked reads a hello and finds its name. It reports false while there is more to come.
func (l *link) asked() (name string, refused *refusal, done bool) {
	complete, refused := l.hello.read(&l.client, l.poller.scratch[:helloShare])
	if complete {
		name, refused = serverName(l.hello.message)
	}
	return name, refused, complete || refused != nil
}

// resolve finds the addresses of an allowed name.
func (l *link) resolve() {
	if l.left() {
		return
	}
	cfg := &l.flow.guard.cfg
	if cfg.Known != nil {
		if addrs, ok := cfg.Known(l.flow.client, l.name); ok {
			l.resolved(addrs, nil)
			return
		}
	}
	l.next = (*link).wait
	l.poller.untimed(l)
	ctx, cancel := context.WithCancel(l.poller.life)
	l.cancel = cancel
	l.flow.guard.running.Go(func() {
		defer cancel()
		addrs, err := l.flow.resolve(ctx, l.name)
		l.poller.post(func() {
			switch {
			case l.closed.Load():
			case l.poller.life.Err() != nil:
				l.reset() // the guard ends, which is no verdict
			default:
				l.resolved(addrs, err)
			}
		})
	})
}

func (l *link) resolved(addrs []netip.Addr, err error) {
	l.last = unconnected(addrs, err)
	if err == nil {
		l.addrs = addrs
	}
	l.connectBy = l.poller.now.Add(l.flow.guard.cfg.Limits.ConnectTotal)
	l.connect()
}
