package egress

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/sockopt"
)

// A relay carries connections to ports besides 80 and 443, and to addresses that may be reached
// whatever the name. The former have no name that could be read: they may go to addresses that DNS
// answered for allowed names, while the answers last.

const (
	// leastTTL is the least time that an address may be reached: programs hold on to addresses for
	// a moment.
	leastTTL = time.Minute
	// maxTTL is the longest.
	maxTTL = time.Hour
	// maxAnswers bounds the answers, each a name and an address, that one container can make us
	// remember, and maxNames those of one address.
	maxAnswers, maxNames = 1024, 16
	// relayDial bounds the time to connect to an address.
	relayDial = 10 * time.Second
)

// answers are the addresses that a container has got from DNS, each with its names: several may
// have the same address.
type answers struct {
	mu    sync.Mutex
	names map[netip.Addr][]answeredName // the one answered last comes last
	count int                           // of all of them
}

type answeredName struct {
	name  string
	until time.Time
}

// note remembers addresses of an allowed name. Where even expired answers leave no room, an address
// takes the place of one of its own names, or of one of several that another address has; it is not
// remembered if there is none.
func (a *answers) note(name string, addrs []netip.Addr, ttl time.Duration, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.names == nil {
		a.names = map[netip.Addr][]answeredName{}
	}
	if a.count+len(addrs) > maxAnswers {
		for addr := range a.names {
			a.drop(addr, func(n answeredName) bool { return now.After(n.until) })
		}
	}
	until := now.Add(min(max(ttl, leastTTL), maxTTL))
	for _, addr := range addrs {
		lasts := until // an earlier answer, which the program may keep, can last longer
		a.drop(addr, func(n answeredName) bool {
			if n.name == name && n.until.After(lasts) {
				lasts = n.until
			}
			return n.name == name
		})
		if known := a.names[addr]; len(known) == maxNames ||
			a.count == maxAnswers && len(known) > 0 {
			a.dropFirst(addr)
		} else if a.count == maxAnswers {
			for other, names := range a.names {
				if len(names) > 1 {
					a.dropFirst(other)
					break
				}
			}
		}
		if a.count < maxAnswers {
			a.names[addr] = append(a.names[addr], answeredName{name, lasts})
			a.count++
		}
	}
}

// dropFirst forgets the name of an address that would be forgotten first; a.mu is held.
func (a *answers) dropFirst(addr netip.Addr) {
	first := slices.MinFunc(a.names[addr], func(n, m answeredName) int {
		return n.until.Compare(m.until)
	})
	a.drop(addr, func(n answeredName) bool { return n == first })
}

// drop forgets those names of an address that match; a.mu is held.
func (a *answers) drop(addr netip.Addr, match func(answeredName) bool) {
	before := a.names[addr]
	left := slices.DeleteFunc(before, match)
	a.count -= len(before) - len(left)
	if a.names[addr] = left; len(left) == 0 {
		delete(a.names, addr)
	}
}

// namesOf returns the names that an address was answered for, the latest first.
func (a *answers) namesOf(addr netip.Addr, now time.Time) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range slices.Backward(a.names[addr]) {
		if now.Before(n.until) {
			names = append(names, n.name)
		}
	}
	return names
}

// relays are the relayed connections of a container.
type relays struct {
	mu   sync.Mutex
	open map[*relayed]bool
}

// relayed is one connection.
type relayed struct {
	addr   netip.Addr
	names  []string // that its address was answered for when it came
	name   string   // the one that it was allowed under, empty for an address that may be reached whatever the name
	others int      // how many were open when it came
	cut    context.CancelFunc
}

// enter counts a connection until leave is called, if it is allowed. It decides under the lock, so
// that after a change of what is allowed either recheck finds the connection, or the decision
// follows the change.
func (ep *endpoint) enter(addr netip.Addr,
	cut context.CancelFunc) (r *relayed, leave func(), ok bool) {
	r = &relayed{addr: addr, names: ep.answers.namesOf(addr, time.Now()), cut: cut}
	rs := &ep.relays
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r.name, ok = ep.reach.Load().under(r.names, addr); !ok {
		return nil, nil, false
	}
	if rs.open == nil {
		rs.open = map[*relayed]bool{}
	}
	r.others = len(rs.open)
	rs.open[r] = true
	return r, func() {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		delete(rs.open, r)
	}, true
}

// recheck ends the connections that now does not allow, under whichever name. The caller has stored
// now, so new connections follow it already.
func (rs *relays) recheck(now *reach) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r := range rs.open {
		if _, ok := now.under(r.names, r.addr); !ok {
			r.cut()
		}
	}
}

// startRelays accepts connections at the further ports until life ends.
func (s *stack) startRelays(life context.Context) {
	if s.gateway == nil {
		return
	}
	for port, l := range s.gateway.Ports {
		stop := context.AfterFunc(life, func() { _ = l.Close() })
		s.work.Go(func() {
			defer stop()
			for life.Err() == nil {
				c, err := l.AcceptTCP()
				if err == nil {
					s.work.Go(func() { s.relay(life, c, port) })
				} else if life.Err() == nil {
					s.owner.cfg.Log.Error().Err(err).Uint16("port", port).
						Msg("cannot accept a connection to a further port")
					pause(life, 100*time.Millisecond)
				}
			}
		})
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// relay connects a container to the address that it dialled, if allowed, and carries bytes until
// both sides have ended, or the container has gone.
func (s *stack) relay(life context.Context, c *net.TCPConn, port uint16) {
	defer abort(c)
	ep := s.endpoints.served(addrPortOf(c.RemoteAddr()).Addr())
	if ep == nil || ep.open {
		return
	}
	to := addrPortOf(c.LocalAddr())
	decided := func(name string, verdict decisions.Verdict, reason string) {
		s.owner.cfg.Decisions.Add(decisions.Decision{
			User: ep.user, Container: ep.container, Name: name, Via: decisions.TCP, Port: port,
			Verdict: verdict, Reason: reason,
		})
	}
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	r, leave, ok := ep.enter(to.Addr(), cancel)
	if !ok {
		decided(to.Addr().String(), decisions.Denied,
			"the address was not answered for an allowed name, or too long ago: ask for the name again")
		return
	}
	defer leave()
	name, allowed := r.name, "the name is allowed"
	if name == "" {
		name, allowed = ep.Asked(to.Addr()), "the address is allowed"
	}
	switch {
	case !s.admits.Admits(to.Addr()):
		decided(name, decisions.Denied, "the name has no address that this call may reach")
		return
	case r.others >= s.owner.cfg.MaxConnections:
		decided(name, decisions.Limited, "too many connections are open")
		return
	}
	buffers, give := s.owner.takeRelay(ep.user, to)
	if buffers == 0 {
		decided(name, decisions.Limited, "budget used up: the user has too many connections open")
		return
	}
	defer give()
	go func() {
		select {
		case <-ep.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	sockopt.Bound(c, buffers)
	dialer := net.Dialer{Timeout: relayDial, KeepAliveConfig: sockopt.KeepAlive,
		Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { sockopt.BoundOrigin(int(fd), buffers) })
		}}
	far, err := dialer.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		decided(name, decisions.Failed, "no address of the name could be connected to")
		return
	}
	decided(name, decisions.Allowed, allowed)
	s.guard.Carry(ctx, ep, c, far.(*net.TCPConn))
}

// relayDescriptors is how many a relayed connection has: two sockets.
const relayDescriptors = 2

// takeRelay takes what a relayed connection needs from its user's budgets, and returns how many
// bytes the kernel may hold for it, or 0 if a budget is used up. Whichever side ends it first, the
// port counts as one that the kernel keeps.
func (e *Egress) takeRelay(user string, to netip.AddrPort) (buffers int, give func()) {
	b := e.budget
	if !b.Descriptors.Take(user, relayDescriptors) {
		return 0, nil
	}
	if buffers = b.TakeBuffers(user); buffers == 0 {
		b.Descriptors.Give(user, relayDescriptors)
		return 0, nil
	}
	if !b.Ports.Take(user, to) {
		b.Buffers.Give(user, buffers)
		b.Descriptors.Give(user, relayDescriptors)
		return 0, nil
	}
	return buffers, func() {
		b.Ports.Give(user, to, true)
		b.Buffers.Give(user, buffers)
		b.Descriptors.Give(user, relayDescriptors)
	}
}

// abort closes a connection at once. It does nothing to one that is closed already.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func addrPortOf(addr net.Addr) netip.AddrPort {
	a := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
