package dnsfilter_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// crowd has nine containers of mallory at 127.1.0.1 and following, and one of alice at filtered.
func crowd(c *dnsfilter.Config) {
	clients := map[netip.Addr]*dnsfilter.Client{
		netip.MustParseAddr(filtered): {ID: "alices", User: "alice", Open: true},
	}
	for i := range 9 {
		clients[netip.MustParseAddr(mallory(i))] = &dnsfilter.Client{ID: fmt.Sprint("mallorys", i), User: "mallory", Open: true}
	}
	c.Client = func(a netip.Addr) *dnsfilter.Client { return clients[a] }
}

func mallory(i int) string { return fmt.Sprint("127.1.0.", i+1) }

// TestOneUsersContainersAreNotInTheWay has nine containers of one user ask for as many silent names as they may.
// All names of another user, new ones, are answered meanwhile.
func TestOneUsersContainersAreNotInTheWay(t *testing.T) {
	gate := make(chan struct{})
	upstream := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if strings.HasPrefix(strings.ToLower(q.Question[0].Name), "silent") {
			<-gate
		}
		_ = w.WriteMsg(good(q))
	})
	l := newLab(t, crowd, upstream.addr)
	defer close(gate)
	const each = 200
	for i := range 9 {
		conn := l.dial(mallory(i), "udp")
		t.Cleanup(func() { conn.Close() })
		for n := range each {
			packed, err := new(dns.Msg).SetQuestion(fmt.Sprintf("silent-%d-%d.example.org.", i, n), dns.TypeA).Pack()
			must(t, err)
			_, err = conn.Write(packed)
			must(t, err)
			if n%20 == 19 { // the socket's buffer is not what this is about
				seen := i*each + n + 1
				waittest.Until(t, "their questions", func() bool { return l.waiting(upstream)+l.count(dnsfilter.Limited) >= seen })
			}
		}
	}
	for n := range 200 {
		l.wantSaid(filtered, fmt.Sprintf("new%d.example.org.", n), dns.TypeA, "NOERROR 1.2.3.4")
	}
	if got := l.waiting(upstream); got != 256 {
		t.Errorf("%d silent names of one user wait, want a quarter of 1024", got)
	}
}

// waiting is how many silent names the upstream was asked for.
func (l *lab) waiting(upstream *fake) (n int) {
	for _, asked := range upstream.asked() {
		if strings.HasPrefix(asked, "silent") {
			n++
		}
	}
	return n
}

func (l *lab) dial(from, network string) net.Conn {
	l.Helper()
	dialer := l.client(from, network).Dialer
	conn, err := dialer.Dial(network, l.addr)
	must(l, err)
	return conn
}

// TestOneUsersConnections has nine containers of one user open as many connections as there are in all.
func TestOneUsersConnections(t *testing.T) {
	l := newLab(t, func(c *dnsfilter.Config) {
		crowd(c)
		c.MaxConns = 32
		c.IdleTimeout = patience
	}, newFake(t, nil).addr)
	open := func(from string) bool {
		conn := l.dial(from, "tcp")
		t.Cleanup(func() { conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		ask := &dns.Conn{Conn: conn}
		if ask.WriteMsg(new(dns.Msg).SetQuestion("example.org.", dns.TypeA)) != nil {
			return false
		}
		_, err := ask.ReadMsg()
		return err == nil
	}
	opened := 0
	for n := range 32 {
		if open(mallory(n % 9)) {
			opened++
		}
	}
	if opened != 8 {
		t.Errorf("one user has %d connections, want a quarter of 32", opened)
	}
	if !open(filtered) {
		t.Error("another user has none")
	}
}

// TestRateOfAUser has the containers of one user ask four times as often as one may, and no more.
func TestRateOfAUser(t *testing.T) {
	l := newLab(t, func(c *dnsfilter.Config) {
		crowd(c)
		c.QueriesPerSecond = 3
	}, newFake(t, nil).addr)
	answered := 0
	for n := range 9 * 6 {
		reply, _, err := l.client(mallory(n%9), "tcp").Exchange(new(dns.Msg).SetQuestion("example.org.", dns.TypeA), l.addr)
		must(t, err)
		if reply.Rcode == dns.RcodeSuccess {
			answered++
		}
	}
	if answered != 4*6 {
		t.Errorf("%d were answered, want 24", answered)
	}
	l.wantSaid(filtered, "example.org.", dns.TypeA, "NOERROR 1.2.3.4")
}

// TestALookupCountsUntilItHasEnded has a caller that leaves as soon as an upstream was asked. The upstream still works on that,
// so the user has no further lookup for it.
func TestALookupCountsUntilItHasEnded(t *testing.T) {
	gate, asked := make(chan struct{}), make(chan struct{}, 20)
	upstream := newFake(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked <- struct{}{}
		<-gate
		_ = w.WriteMsg(good(q))
	})
	l := newLab(t, func(c *dnsfilter.Config) { c.MaxLookups = 8 }, upstream.addr)
	who := &dnsfilter.Client{ID: "hasty", User: "hasty"}
	for n := range 10 {
		ctx, leave := context.WithCancel(t.Context())
		resolved := make(chan error, 1)
		go func() {
			_, err := l.Resolve(ctx, who, fmt.Sprintf("a%d.example.org", n))
			resolved <- err
		}()
		want := context.Canceled
		if n >= 2 { // of a quarter of eight
			want = errdefs.ErrUnavailable
		}
		select {
		case <-asked:
			leave()
			if err := <-resolved; !errors.Is(err, want) || n >= 2 {
				t.Errorf("lookup %d asked the upstream: %v", n, err)
			}
		case err := <-resolved:
			leave()
			if !errors.Is(err, want) || n < 2 {
				t.Errorf("lookup %d: %v", n, err)
			}
		}
	}
	close(gate)
	waittest.Until(t, "a lookup of those that have ended", func() bool {
		addrs, err := l.Resolve(t.Context(), who, "b.example.org")
		return err == nil && len(addrs) == 1
	})
}
