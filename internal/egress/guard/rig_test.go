package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// patience bounds every wait for something that must happen soon.
const patience = 10 * time.Second

// fakeNetwork is a network with clients that may reach the same. What is not set is as if no client
// asked for it.
type fakeNetwork struct {
	client             func(netip.Addr) (Client, bool)
	resolve            func(context.Context, string) ([]netip.Addr, error)
	known              func(string) ([]netip.Addr, bool)
	mayConnect, direct func(netip.Addr) bool
	asked              func(netip.Addr) string
	relay              func(*net.TCPConn, uint16)
	decided            func(decisions.Decision)
}

// fakes returns the network of a rig's guard.
func fakes(c *Config) *fakeNetwork { return c.Network.(*fakeNetwork) }

func (n *fakeNetwork) Client(a netip.Addr) (Client, bool) {
	ep, known := n.client(a)
	if known {
		ep.(interface{ join(*fakeNetwork) }).join(n)
	}
	return ep, known
}

func (n *fakeNetwork) Relay(c *net.TCPConn, port uint16) { n.relay(c, port) }
func (n *fakeNetwork) Decided(d decisions.Decision) {
	if n.decided != nil {
		n.decided(d)
	}
}

type fakeClient struct {
	in    atomic.Pointer[fakeNetwork]
	id    string
	user  string
	names []string
	now   atomic.Pointer[[]string] // instead of names, if set
	// secrets are the names of its credentials.
	secrets atomic.Pointer[[]string]
	done    chan struct{}
}

func (c *fakeClient) ID() string    { return c.id }
func (c *fakeClient) User() string  { return c.user }
func (c *fakeClient) Field() string { return "allowedDomains" }
func (c *fakeClient) Secrets() []string {
	if held := c.secrets.Load(); held != nil {
		return *held
	}
	return nil
}
func (c *fakeClient) Done() <-chan struct{} { return c.done }
func (c *fakeClient) join(n *fakeNetwork)   { c.in.Store(n) }
func (c *fakeClient) Resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	return c.in.Load().resolve(ctx, name)
}
func (c *fakeClient) MayConnect(a netip.Addr) bool { return c.in.Load().mayConnect(a) }
func (c *fakeClient) Direct(a netip.Addr) bool {
	direct := c.in.Load().direct
	return direct != nil && direct(a)
}
func (c *fakeClient) Known(name string) ([]netip.Addr, bool) {
	if known := c.in.Load().known; known != nil {
		return known(name)
	}
	return nil, false
}
func (c *fakeClient) Asked(a netip.Addr) string {
	if asked := c.in.Load().asked; asked != nil {
		return asked(a)
	}
	return ""
}
func (c *fakeClient) Allows(name string) bool {
	if now := c.now.Load(); now != nil {
		return slices.Contains(*now, name)
	}
	return slices.Contains(c.names, name)
}

// rig is a guard on loopback whose names all live at 127.0.0.1.
type rig struct {
	*Guard
	t         testing.TB
	client    *fakeClient // the one at 127.0.0.1
	decisions chan decisions.Decision
	counts    sync.Map // of decisions by Verdict
	tls, http string
}

var loopback = netip.MustParseAddr("127.0.0.1")

// newRig starts a guard whose upstream ports are those given.
func newRig(t testing.TB, tlsPort, httpPort uint16, change func(*Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, decisions: make(chan decisions.Decision, 10000),
		client: &fakeClient{id: "anna", names: []string{"allowed.example", "also.example"}, done: make(chan struct{})},
	}
	cfg := Config{
		TLS: listen(t), TLSPort: max(tlsPort, 1),
		HTTP: listen(t), HTTPPort: max(httpPort, 1),
		Network: &fakeNetwork{
			client:     func(a netip.Addr) (Client, bool) { return r.client, a == loopback },
			resolve:    func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{loopback}, nil },
			mayConnect: func(a netip.Addr) bool { return a == loopback },
			decided: func(d decisions.Decision) {
				count, _ := r.counts.LoadOrStore(d.Verdict, &atomic.Int64{})
				count.(*atomic.Int64).Add(1)
				select {
				case r.decisions <- d:
				default:
				}
			}},
		Limits: DefaultLimits(), Budget: budgets(),
		Logger: zerolog.Nop(),
	}
	r.tls, r.http = cfg.TLS.Addr().String(), cfg.HTTP.Addr().String()
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Guard = g
	if err := g.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if open := g.Open(); open != 0 {
			t.Errorf("%d connections are open after Shutdown", open)
		}
		eventually(t, "something is under way after Shutdown", func() bool {
			begun, waiting := g.work.Count()
			return begun+waiting == 0
		})
	})
	return r
}

func listen(t testing.TB) *net.TCPListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

func portOf(l net.Listener) uint16 { return peer(l.Addr()).Port() }

// decided waits for the next decision.
func (r *rig) decided(verdict decisions.Verdict, name, reason string) decisions.Decision {
	r.t.Helper()
	select {
	case d := <-r.decisions:
		if d.Verdict != verdict || d.Name != name || d.Reason != reason {
			r.t.Errorf("decided %s %q (%s), want %s %q (%s)", d.Verdict, d.Name, d.Reason, verdict, name, reason)
		}
		return d
	case <-time.After(patience):
		r.t.Fatalf("nothing was decided, want %s %q (%s)", verdict, name, reason)
		return decisions.Decision{}
	}
}

// counted returns how many decisions there were.
func (r *rig) counted(v decisions.Verdict) int64 {
	count, _ := r.counts.LoadOrStore(v, &atomic.Int64{})
	return count.(*atomic.Int64).Load()
}

func (r *rig) undecided() {
	r.t.Helper()
	select {
	case d := <-r.decisions:
		r.t.Errorf("decided %+v, want nothing", d)
	default:
	}
}

// dial connects to an address and closes at the end of the test; it never waits for ever.
func dial(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// onceSent has a guard look at each connection when sent is told that its client has sent all.
func onceSent(c *Config) (sent chan<- bool) {
	all, known := make(chan bool), fakes(c).client
	fakes(c).client = func(a netip.Addr) (Client, bool) {
		<-all
		return known(a)
	}
	return all
}

// knock connects where it is cut off, and returns what it is told. The reset may come so early that
// it is connect that fails.
func knock(t testing.TB, addr string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Error(err)
		}
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	return readAll(c)
}

// readAll reads until the peer ends the connection, in whatever way.
func readAll(c net.Conn) string {
	var all bytes.Buffer
	_, _ = io.Copy(&all, c)
	return all.String()
}

// eventually polls for what has no event of its own.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !waittest.Comes(ok) {
		t.Fatal(what)
	}
}

// dialing connects to one address, whatever was asked for.
func dialing(addr string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
}

// waitForEnd resolves nothing before its context ends, and says that it was asked.
func waitForEnd(asked chan<- bool) func(context.Context, string) ([]netip.Addr, error) {
	return func(ctx context.Context, _ string) ([]netip.Addr, error) {
		asked <- true
		<-ctx.Done()
		return nil, ctx.Err()
	}
}

// timeWaits counts the ports of this side that the kernel keeps after connections to a port.
func timeWaits(t testing.TB, to uint16) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const timeWait = "06"
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", to)) && fields[3] == timeWait {
			n++
		}
	}
	return n
}
