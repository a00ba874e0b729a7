package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/egress/budget"
)

// Client is one container's permission to connect. It never changes; it is revoked, and another
// takes its place.
type Client interface {
	// ID says whose connections these are, in decisions.
	ID() string
	// User is who has the client. Budgets and turns are a user's, over all its clients.
	User() string
	// Allows reports whether name, in canonical form (lower case, ASCII, no trailing dot), may be
	// connected to. It must not block.
	Allows(name string) bool
	// Done is closed when the client is revoked: its connections then end at once. It is the same
	// channel at every call, and one that no other client has.
	Done() <-chan struct{}
}

// Endpoint is where one kind of connection arrives.
type Endpoint struct {
	// Addr is the address to listen on: the bridge's gateway and the port that nftables redirects
	// to. Port 0 takes a free one.
	Addr netip.AddrPort
	// Listener is used instead of Addr when it is set. The guard closes it.
	Listener *net.TCPListener
	// Port is the port that the program must have dialled, and that the guard connects to. The
	// default is 443 for TLS and 80 for HTTP.
	Port uint16
}

// Config is what a guard needs. Its functions are called from many goroutines at once. None but Resolve may
// block: other connections would wait.
type Config struct {
	// TLS and HTTP are the two listeners.
	TLS, HTTP Endpoint
	// Client finds who has a source address. A connection from an unknown one is closed.
	Client func(source netip.Addr) (Client, bool)
	// Resolve finds the addresses that client may reach under an allowed name. It may block until
	// ctx ends.
	Resolve func(ctx context.Context, client Client, name string) ([]netip.Addr, error)
	// MayConnect is asked about each address right before the guard connects to it, whatever
	// Resolve said: public for most clients, private too for those of the local profile.
	MayConnect func(client Client, addr netip.Addr) bool
	// Known, if set, is asked before Resolve, for TLS: it is what Resolve would return, if that is known
	// without waiting.
	Known func(client Client, name string) (addrs []netip.Addr, known bool)
	// Dialled tells where the program at the other end of a socket meant to connect to; here is the socket's
	// own address, which is the default: the listeners accept what was sent to any address.
	Dialled func(socket int, here netip.AddrPort) (netip.AddrPort, error)
	// Decided, if set, is told of every verdict.
	Decided func(Decision)
	// Limits bound what a client may use.
	Limits Limits
	// Budget bounds what a user may use, over all guards that have the same. The default is one of the guard's own.
	Budget *budget.Connections
	// Logger gets what an operator should know. Verdicts are not logged.
	Logger zerolog.Logger
}

// Limits bound what one client may use. Zero means the default. A TLS connection that is late may be so by
// 50 ms before it ends.
type Limits struct {
	// Connections is how many one source address may have open. Default 4096.
	Connections int
	// HTTPConnections is how many of them may be HTTP, which hold more memory. Default 1024.
	HTTPConnections int
	// Undecided is how many of them may not have said yet where they go. Default 256.
	Undecided int
	// HelloBytes is the size of a ClientHello, or of the head of an HTTP request. Default 64 KiB.
	HelloBytes int
	// HelloTimeout is how long the complete ClientHello or head may take. Default 10 s.
	HelloTimeout time.Duration
	// ResolveTimeout bounds the resolution of a name. Default 10 s.
	ResolveTimeout time.Duration
	// ConnectTimeout bounds the connection to one address; a name's addresses are tried in their
	// order. Default 3 s.
	ConnectTimeout time.Duration
	// ConnectTotal bounds the connection to a name, over all addresses. Default 10 s.
	ConnectTotal time.Duration
	// AnswerTimeout is how long a TLS server may take to answer the ClientHello. Default 60 s.
	AnswerTimeout time.Duration
	// HalfClosedIdle ends a TLS connection of which one direction has ended and the other is idle
	// for so long, and an HTTP request whose answer has not ended so long after its client's half.
	// A connection that is open both ways may be idle for ever. Default 5 min.
	HalfClosedIdle time.Duration
	// HalfClosedAnswer is how long an HTTP request may wait for the beginning of its answer after its client has
	// ended its half: most of these have gone. Default 10 s.
	HalfClosedAnswer time.Duration
	// HTTPIdle ends an HTTP connection that waits for its next request. Default 2 min.
	HTTPIdle time.Duration
}

var defaults = Limits{
	Connections: 4096, HTTPConnections: 1024, Undecided: 256, HelloBytes: 64 << 10,
	HelloTimeout: 10 * time.Second, ResolveTimeout: 10 * time.Second, ConnectTimeout: 3 * time.Second,
	ConnectTotal: 10 * time.Second, AnswerTimeout: time.Minute, HalfClosedIdle: 5 * time.Minute,
	HalfClosedAnswer: 10 * time.Second, HTTPIdle: 2 * time.Minute,
}

// Validate returns all faults.
func (c Config) Validate() error {
	var faults []error
	missing := func(what string, absent bool) {
		if absent {
			faults = append(faults, fmt.Errorf("%s is missing", what))
		}
	}
	missing("TLS.Addr", c.TLS.Listener == nil && !c.TLS.Addr.IsValid())
	missing("HTTP.Addr", c.HTTP.Listener == nil && !c.HTTP.Addr.IsValid())
	missing("Client", c.Client == nil)
	missing("Resolve", c.Resolve == nil)
	missing("MayConnect", c.MayConnect == nil)
	l := c.Limits
	if min(l.Connections, l.HTTPConnections, l.Undecided, l.HelloBytes) < 0 ||
		min(l.HelloTimeout, l.ResolveTimeout, l.ConnectTimeout, l.ConnectTotal, l.AnswerTimeout, l.HalfClosedIdle, l.HalfClosedAnswer, l.HTTPIdle) < 0 {
		faults = append(faults, errors.New("a limit is negative"))
	}
	return errors.Join(faults...)
}

func (c Config) withDefaults() Config {
	fill(&c.TLS.Port, 443)
	fill(&c.HTTP.Port, 80)
	if c.Dialled == nil {
		c.Dialled = func(_ int, here netip.AddrPort) (netip.AddrPort, error) { return here, nil }
	}
	if c.Decided == nil {
		c.Decided = func(Decision) {}
	}
	l := &c.Limits
	fill(&l.Connections, defaults.Connections)
	fill(&l.HTTPConnections, defaults.HTTPConnections)
	fill(&l.Undecided, defaults.Undecided)
	fill(&l.HelloBytes, defaults.HelloBytes)
	fill(&l.HelloTimeout, defaults.HelloTimeout)
	fill(&l.ResolveTimeout, defaults.ResolveTimeout)
	fill(&l.ConnectTimeout, defaults.ConnectTimeout)
	fill(&l.ConnectTotal, defaults.ConnectTotal)
	fill(&l.AnswerTimeout, defaults.AnswerTimeout)
	fill(&l.HalfClosedIdle, defaults.HalfClosedIdle)
	fill(&l.HalfClosedAnswer, defaults.HalfClosedAnswer)
	fill(&l.HTTPIdle, defaults.HTTPIdle)
	return c
}

// fill gives a value that is zero its default.
func fill[T comparable](value *T, standard T) {
	var zero T
	if *value == zero {
		*value = standard
	}
}
