package dnsfilter_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/policy"
)

// The reasons of decisions, as operators read them.
const (
	byName    = "the name is not allowed for this call"
	byForm    = "what was asked for is not a host name"
	byClass   = "records of this class are not answered"
	byAddress = "the name has no address that this call may reach"
	byType    = "records of this type are not answered"
	byOther   = "only addresses are answered, no SRV, TXT or other records: name the server itself, as in mongodb:// instead of mongodb+srv://"
	byNobody  = "the DNS servers know no such name"
	asReverse = "reverse lookups are not answered"
	unknown   = "nobody is known at this address"
)

// Who asks, by address.
const (
	filtered = "127.0.0.1" // example.org and what is below it
	open     = "127.0.0.2" // anything
	other    = "127.0.0.3" // as filtered
	stranger = "127.0.0.4"
)

// patience bounds every wait for what has to come: a machine that is busy takes long.
const patience = 30 * time.Second

// lab is a server on loopback with the clients above.
type lab struct {
	testing.TB
	*dnsfilter.Server
	addr  string
	clock *clock

	mu        sync.Mutex
	decisions []dnsfilter.Decision
	answers   []string
}

type clock struct{ nanos atomic.Int64 }

func (c *clock) now() time.Time           { return time.Unix(0, c.nanos.Load()) }
func (c *clock) advance(by time.Duration) { c.nanos.Add(int64(by)) }

// setBack returns a time of time.Now as it is when the host's clock was set back before: its monotonic part goes on. Package
// time has no way to make one.
func setBack(t testing.TB, at time.Time, by time.Duration) time.Time {
	t.Helper()
	moved := at
	*(*uint64)(unsafe.Pointer(&moved)) -= uint64(by/time.Second) << 30 // seconds are above the nanoseconds
	if moved.Sub(at) != 0 || moved.Unix() != at.Add(-by).Unix() {
		t.Fatalf("%s was made of %s", moved, at)
	}
	return moved
}

func below(apex string) func(string) bool {
	return func(name string) bool { return name == apex || strings.HasSuffix(name, "."+apex) }
}

func config(l *lab, upstreams ...string) dnsfilter.Config {
	clients := map[string]*dnsfilter.Client{
		filtered: {ID: "filtered", User: "filtered", Allows: below("example.org")},
		open:     {ID: "open", User: "open", Open: true},
		other:    {ID: "other", User: "other", Allows: below("example.org")},
	}
	for _, client := range clients {
		client.Answered = func(name string, addrs []netip.Addr, ttl time.Duration) {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, a := range addrs {
				l.answers = append(l.answers, client.ID+" "+name+" "+a.String()+" "+ttl.String())
			}
		}
	}
	return dnsfilter.Config{
		Sockets:   []dnsfilter.Socket{bind(l, "127.0.0.1:0")},
		Upstreams: upstreams,
		Admits:    policy.Addresses{}.Admits,
		Client:    func(a netip.Addr) *dnsfilter.Client { return clients[a.String()] },
		Now:       l.clock.now,
		// An upstream that is slow is not asked again: tests count how often it was.
		Timeout: patience, TryTimeout: patience,
		Decided: func(d dnsfilter.Decision) {
			l.mu.Lock()
			l.decisions = append(l.decisions, d)
			l.mu.Unlock()
		},
		Log: zerolog.Nop(),
	}
}

// local admits private addresses.
func local(c *dnsfilter.Config) { c.Admits = policy.Addresses{Private: true}.Admits }

// bind closes what it has bound at the end of the test, if nobody has.
func bind(t testing.TB, at string) dnsfilter.Socket {
	t.Helper()
	bound, err := dnsfilter.Listen(t.Context(), netip.MustParseAddrPort(at))
	for range 10 { // a free port for TCP may be in use for UDP
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		bound, err = dnsfilter.Listen(t.Context(), netip.MustParseAddrPort(at))
	}
	must(t, err)
	t.Cleanup(bound.Close)
	return bound
}

// count returns how many questions were decided so.
func (l *lab) count(v dnsfilter.Verdict) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.decisions {
		if d.Verdict == v {
			n++
		}
	}
	return n
}

// newLab starts a server in front of upstreams; change may be nil.
func newLab(t testing.TB, change func(*dnsfilter.Config), upstreams ...string) *lab {
	t.Helper()
	l := &lab{TB: t, clock: new(clock)}
	l.clock.advance(1000 * time.Hour)
	c := config(l, upstreams...)
	if change != nil {
		change(&c)
	}
	var err error
	l.Server, err = dnsfilter.New(c)
	must(t, err)
	must(t, l.Start(t.Context()))
	t.Cleanup(func() { must(t, l.Shutdown(context.Background())) })
	l.addr = c.Sockets[0].TCP.Addr().String()
	return l
}

func (l *lab) client(from, network string) *dns.Client {
	var at net.Addr = &net.UDPAddr{IP: net.ParseIP(from)}
	if network == "tcp" {
		at = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	return &dns.Client{Net: network, Dialer: &net.Dialer{LocalAddr: at}, Timeout: patience, UDPSize: 4096}
}

// ask asks one question with EDNS by UDP.
func (l *lab) ask(from, name string, qtype uint16) *dns.Msg {
	l.Helper()
	q := new(dns.Msg).SetQuestion(name, qtype).SetEdns0(1232, false)
	reply, _, err := l.client(from, "udp").Exchange(q, l.addr)
	must(l, err)
	return reply
}

// said tells what an answer says in a line: rcode, addresses or records, and the extended error.
func said(m *dns.Msg) string {
	parts := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range m.Answer {
		parts = append(parts, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	if len(m.Ns) == 1 && m.Ns[0].Header().Rrtype == dns.TypeSOA {
		parts = append(parts, "SOA")
	}
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				parts = append(parts, "EDE", dns.ExtendedErrorCodeToString[e.InfoCode])
			}
		}
	}
	return strings.Join(parts, " ")
}

// wantSaid asks and compares.
func (l *lab) wantSaid(from, name string, qtype uint16, want string) {
	l.Helper()
	if got := said(l.ask(from, name, qtype)); got != want {
		l.Errorf("%s asks for %s %s: %s, want %s", from, name, dns.TypeToString[qtype], got, want)
	}
}

func (l *lab) lastDecision() dnsfilter.Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.decisions) == 0 {
		l.Fatal("nothing was decided")
	}
	return l.decisions[len(l.decisions)-1]
}

func (l *lab) nothingDecided() {
	l.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.decisions) > 0 {
		l.Errorf("noise: %+v", l.decisions)
	}
}

// limited is how many questions were, by what was told of them.
func (l *lab) limited() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, d := range l.decisions {
		if d.Verdict == dnsfilter.Limited {
			n++
		}
	}
	return n
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
