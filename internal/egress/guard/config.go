package guard

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// Client is one container's permission to connect. When what it may reach changes, Guard.Recheck
// ends the connections that are no longer allowed. Its methods are called from many goroutines at
// once. None but Resolve may block: other connections would wait.
type Client interface {
	// ID is the container's name.
	ID() string
	// User is the client's user. Budgets and turns are per user, over all of the user's clients.
	User() string
	// Field is where whoever runs the client names what it may reach, in the words of the door that
	// he came by.
	Field() string
	// Done is closed when the client is revoked: its connections then end at once. Every call
	// returns the same channel, which no other client has.
	Done() <-chan struct{}
	// Allows reports whether name, in canonical form (lower case, ASCII, no trailing dot), may be
	// connected to.
	Allows(name string) bool
	// Known returns what Resolve would return, if that is known without waiting.
	Known(name string) (addrs []netip.Addr, known bool)
	// Resolve finds the addresses that may be reached under an allowed name. It may block until ctx
	// ends.
	Resolve(ctx context.Context, name string) ([]netip.Addr, error)
	// MayConnect is asked about each address right before the guard connects to it, whatever
	// Resolve said: public for most clients, private too for those of the local profile.
	MayConnect(addr netip.Addr) bool
	// Direct reports whether an address may be connected to whatever the name. Such a connection is
	// handed to Network.Relay.
	Direct(addr netip.Addr) bool
	// Secrets are the names of the credentials that its requests may get; nil for most clients.
	Secrets() []string
	// Asked returns what has probably been meant by an address, for verdicts about what gives no
	// name.
	Asked(addr netip.Addr) string
}

// Network is whose connections the guard serves. Its methods are called from many goroutines at
// once, and must not block.
type Network interface {
	// Client finds the one that has a source address. Connections from unknown addresses are
	// closed.
	Client(source netip.Addr) (Client, bool)
	// Relay takes over a connection to a port that its client may make whatever the name.
	Relay(c *net.TCPConn, port uint16)
	// Decided gets every verdict.
	Decided(decisions.Decision)
}

// Config is what a guard needs.
type Config struct {
	// TLS and HTTP accept connections to one port of any address. The guard closes them. TLSPort
	// and HTTPPort are the ports that it connects to: 443 and 80, unless they are set.
	TLS, HTTP         *net.TCPListener
	TLSPort, HTTPPort uint16
	// Network is whose connections these are.
	Network Network
	// Secrets are the credentials that there are; nil for none: then no connection is read.
	Secrets Secrets
	// Roots returns the authorities that may have signed the certificates of origins whose
	// connections are read; nil, and a pool that is nil, stand for those of the host.
	Roots func() *x509.CertPool
	// Limits bound what a client may use; see DefaultLimits.
	Limits Limits
	// Budget bounds what a user may use, over all guards that share it.
	Budget *budget.Connections
	// Logger gets what an operator should know. Verdicts are not logged.
	Logger zerolog.Logger
}

// Limits bound what one client may use. All must be set.
type Limits struct {
	// Connections is how many it may have open.
	Connections int
	// HTTPConnections is how many of them may be HTTP, or be read, which hold more memory.
	HTTPConnections int
	// Undecided is how many of them may not have said yet where they go.
	Undecided int
	// HelloBytes is the size of a ClientHello, or of the head of an HTTP request.
	HelloBytes int
	// HelloTimeout is how long the complete ClientHello or head may take.
	HelloTimeout time.Duration
	// ResolveTimeout bounds the resolution of a name.
	ResolveTimeout time.Duration
	// ConnectTimeout bounds the connection to one address; a name's addresses are tried in their
	// order.
	ConnectTimeout time.Duration
	// ConnectTotal bounds the connection to a name, over all addresses.
	ConnectTotal time.Duration
	// AnswerTimeout is how long a TLS server may take to answer the ClientHello.
	AnswerTimeout time.Duration
	// HalfClosedIdle ends a TLS connection when one direction has ended and the other has been idle
	// for so long, and an HTTP request when its answer has not ended so long after its client has
	// ended its half. A connection that is open both ways may be idle for ever.
	HalfClosedIdle time.Duration
	// HTTPIdle ends an HTTP connection that waits so long for its next request.
	HTTPIdle time.Duration
}

// DefaultLimits returns limits that a program does not notice.
func DefaultLimits() Limits {
	return Limits{
		Connections: 4096, HTTPConnections: 1024, Undecided: 256, HelloBytes: 64 << 10,
		HelloTimeout: 10 * time.Second, ResolveTimeout: 10 * time.Second,
		ConnectTimeout: 3 * time.Second, ConnectTotal: 10 * time.Second, AnswerTimeout: time.Minute,
		HalfClosedIdle: 5 * time.Minute,
		HTTPIdle:       2 * time.Minute,
	}
}

// Validate returns all faults.
func (c Config) Validate() error {
	var faults []error
	for what, absent := range map[string]bool{
		"TLS": c.TLS == nil, "HTTP": c.HTTP == nil, "Network": c.Network == nil,
		"Budget": c.Budget == nil,
	} {
		if absent {
			faults = append(faults, fmt.Errorf("%s is missing", what))
		}
	}
	l := c.Limits
	if min(l.Connections, l.HTTPConnections, l.Undecided, l.HelloBytes) <= 0 ||
		min(l.HelloTimeout, l.ResolveTimeout, l.ConnectTimeout, l.ConnectTotal, l.AnswerTimeout,
			l.HalfClosedIdle, l.HTTPIdle) <= 0 {
		faults = append(faults, errors.New("a limit is not positive"))
	}
	return errors.Join(faults...)
}
