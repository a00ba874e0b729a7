// Package guard is the transparent proxy that checks the name on every outbound TCP connection of
// a filtered container. nftables redirects the container's ports 443 and 80 to it; it reads the name
// that the program asks for, and connects to that name by itself. Which address the program dialled
// does not matter, so a shared address, a spoofed hosts file or a stale answer buys nothing.
//
// TLS is not decrypted. The ClientHello is parsed here, with cryptobyte, rather than by crypto/tls:
// the guard must find exactly the name that the server will find or none at all, so it refuses what
// a lenient parser would pass over (two names, an extension given twice, bytes behind the hello),
// and it needs the bytes as they came in order to send them on. crypto/tls is the oracle in the
// tests. A server may answer with a HelloRetryRequest; the second hello is then held to the first
// one's name. Of Encrypted Client Hello only the outer name is seen, and that is what must be
// allowed; what goes on inside TLS (another Host, a renegotiation) is not seen at all.
//
// After that the bytes are spliced in the kernel, through a pipe that a connection has only while there is
// something to move; where no pipe is to be had they are copied. TLS connections have no goroutines. A few
// pollers serve all of them, each with one goroutine that waits for what the kernel has to tell; see poller. A
// link is one connection: what it does next is one of its methods, which goes as far as it can without waiting.
//
// Turns go by user, not by connection (turns for TLS, gate for HTTP), and so does what a connection takes of the
// host: descriptors, ports, and bytes in this process and in the kernel (reserve).
//
// HTTP is parsed by net/http's server and written anew by net/http's transport, through
// httputil.ReverseProxy: what the origin gets is one well-formed request whose Host is the name that
// was checked, so the two cannot disagree about where a request ends, and every request of a kept
// connection is checked. A client's connection has a transport of its own: no origin connection is
// shared between clients or outlives the client's connection. Of upgrades only WebSocket passes: h2c
// or TLS inside would carry further requests that nobody checks.
package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"runtime"
	"sync"

	"github.com/daycare-run/sandbox/internal/egress/budget"
)

// Guard accepts the redirected connections. Make one with New.
type Guard struct {
	cfg     Config
	budget  *budget.Connections
	clients clients
	counts  counts
	gate    *gate
	web     *http.Server
	proxy   *httputil.ReverseProxy

	listeners []*net.TCPListener
	pollers   []*poller
	stop      context.CancelFunc
	running   sync.WaitGroup
}

// New checks cfg and makes a guard that does nothing until Start.
func New(cfg Config) (*Guard, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("cannot make the guard: %w", err)
	}
	g := &Guard{cfg: cfg.withDefaults()}
	if g.cfg.Budget == nil {
		own, err := budget.NewConnections(0)
		if err != nil {
			return nil, fmt.Errorf("cannot make the guard: %w", err)
		}
		g.cfg.Budget = own
	}
	g.budget = g.cfg.Budget
	g.clients.active = map[identity]*tenant{}
	g.gate = newGate(runtime.GOMAXPROCS(0))
	g.proxy = g.newProxy()
	g.web = g.newServer()
	return g, nil
}

// Start listens and returns; it is called once. Connections are served until Shutdown, or until ctx
// ends, after which Shutdown must still be called.
func (g *Guard) Start(ctx context.Context) error {
	ctx, g.stop = context.WithCancel(ctx)
	var faults []error
	for _, at := range []Endpoint{g.cfg.TLS, g.cfg.HTTP} {
		l, err := at.listen(ctx)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		g.listeners = append(g.listeners, l)
	}
	if len(faults) == 0 {
		faults = append(faults, g.makePollers(ctx, g.listeners[0]))
	}
	if err := errors.Join(faults...); err != nil {
		g.stop()
		g.closeListeners()
		for _, p := range g.pollers {
			p.close()
		}
		return fmt.Errorf("cannot start the guard: %w", err)
	}
	plain := &door{TCPListener: g.listeners[1], guard: g, life: ctx}
	g.web.BaseContext = func(net.Listener) context.Context { return ctx }
	for _, p := range g.pollers {
		g.running.Go(p.run)
	}
	g.running.Go(func() {
		if err := g.web.Serve(plain); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			g.cfg.Logger.Error().Err(err).Msg("guard stopped accepting HTTP")
		}
	})
	g.running.Go(func() {
		<-ctx.Done()
		g.closeListeners()
		_ = g.web.Close()
		g.clients.abortAll()
		for _, p := range g.pollers {
			p.post(p.stop)
		}
	})
	return nil
}

// Shutdown stops listening, ends every connection and waits, at most until ctx ends, for all that
// the guard started.
func (g *Guard) Shutdown(ctx context.Context) error {
	if g.stop == nil {
		return nil
	}
	g.stop()
	done := make(chan struct{})
	go func() {
		g.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for the guard's connections to end: %w", ctx.Err())
	}
}

func (g *Guard) closeListeners() {
	for _, l := range g.listeners {
		_ = l.Close()
	}
}

// makePollers makes the pollers of TLS connections, as many as half of the processors: the other half is for
// all else that the service does.
func (g *Guard) makePollers(ctx context.Context, from *net.TCPListener) error {
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		p, err := newPoller(ctx, g)
		if err != nil {
			return err
		}
		g.pollers = append(g.pollers, p)
	}
	if err := newAcceptor(g.pollers, from); err != nil {
		return err
	}
	return from.Close() // the acceptor has a descriptor of its own
}
