// Package inet is the internet of end-to-end tests and benchmarks: a network namespace beside the
// host's, with addresses that look public, DNS servers, origins and listeners. All of them run in
// this process and log what arrives, so that a test can assert at the receiver.
//
//	containers ── bridges ── host ── veth pair ── Inet: 198.51.100.0/24 and extra addresses
//
// The host is the namespace that New is called in. It has to forward, as it does where Docker runs,
// and gets one link and a few routes, which Close takes away. Containers may be masqueraded or not.
//
// Nothing is sent to the real internet: every address that is held is checked not to be a part of
// it, and the namespace has routes back to private and documentation ranges alone, so that a forged
// public source gets no answer either.
//
// config.go and claims.go say what may be held; space.go makes the namespace. dns.go and zone.go
// are the DNS servers, origin.go the web servers, listen.go the rest, capture.go counts packets.
package inet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
)

// An Inet is a test internet. Its methods may be called concurrently.
type Inet struct {
	// DNS answers on the public range's addresses 53 and 54.
	DNS *DNS

	public  netip.Prefix
	space   *space
	ca      *ca
	arrived journal[Arrival]
	pages   *http.ServeMux

	mu      sync.Mutex // guards what follows
	closed  bool
	closers map[io.Closer]struct{}
	working sync.WaitGroup // is only added to under mu, while not closed
}

// New makes a test internet, as root. First it removes what runs that were killed have left under
// the same name, or under any where it stands in the way; when such a run is still alive, or when
// an address is taken otherwise, it fails and says by whom. The context is for New alone. The
// caller closes the Inet.
func New(ctx context.Context, cfg Config) (*Inet, error) {
	cfg = cfg.withDefaults()
	in, err := build(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot make the test internet %q: %w", cfg.Name, err)
	}
	return in, nil
}

func build(ctx context.Context, cfg Config) (_ *Inet, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("it is a network namespace: run as root")
	}
	in := &Inet{public: cfg.Public, pages: pages(), closers: map[io.Closer]struct{}{}}
	if in.ca, err = newCA(); err != nil {
		return nil, err
	}
	if in.space, err = newSpace(ctx, cfg); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Close())
		}
	}()
	in.DNS = newDNS()
	for _, server := range in.DNSServers() {
		if err := in.serveDNS(server); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// Close ends all servers, connections and captures, waits for them, and removes the namespace, the
// link and the routes. Further calls do nothing. End the clients first: what they send later takes
// the host's default route.
func (in *Inet) Close() error {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return nil
	}
	in.closed = true
	closers := in.closers
	in.closers = nil
	in.mu.Unlock()

	var faults []error
	for c := range closers {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			faults = append(faults, err)
		}
	}
	in.working.Wait()
	faults = append(faults, in.space.close())
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("cannot close the test internet %q: %w", in.space.name, err)
	}
	return nil
}

// Addr returns the n-th address of the public range. All of them are held: where nothing listens, a
// connection is refused.
func (in *Inet) Addr(n int) netip.Addr { return nth(in.public, n) }

// DNSServers returns the addresses of the two DNS servers, which answer alike.
func (in *Inet) DNSServers() [2]netip.Addr { return [2]netip.Addr{in.Addr(53), in.Addr(54)} }

// CA returns the certificate, in PEM, of the authority that signs the origins' certificates.
func (in *Inet) CA() []byte { return in.ca.pem }

// Arrived returns what arrived at origins and listeners since New, in order. A client whose request
// has been answered is in it; for what has only been sent, see Capture.
func (in *Inet) Arrived() []Arrival { return in.arrived.all() }

// own makes Close close c and, when serve is not nil, runs serve and makes Close wait for it. When
// the Inet is already closed, it closes c and reports net.ErrClosed.
func (in *Inet) own(c io.Closer, serve func()) error {
	in.mu.Lock()
	closed := in.closed
	if !closed {
		in.closers[c] = struct{}{}
		if serve != nil {
			in.working.Go(serve)
		}
	}
	in.mu.Unlock()
	if closed { // outside the lock, since c may disown itself
		_ = c.Close()
		return net.ErrClosed
	}
	return nil
}

// disown is for what is closed before the Inet. It reports whether that is closed, too.
func (in *Inet) disown(c io.Closer) (closed bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.closers, c)
	return in.closed
}

// work makes Close wait until the returned func has been called. It is nil when the Inet is closed.
func (in *Inet) work() (done func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil
	}
	in.working.Add(1)
	return in.working.Done
}

// closerFunc is a Close by pointer, so that it can be a key.
type closerFunc struct{ close func() error }

func (c *closerFunc) Close() error { return c.close() }
