// Package guard is the transparent proxy that checks the name on every outbound TCP connection of
// a filtered container. It accepts what the container sends to ports 443 and 80 of any address, reads the name
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
// After that the bytes are spliced in the kernel. TLS connections have no goroutines: see package poller. A session is
// one connection: its next step is one of its methods, which goes as far as it can without waiting.
//
// These are per user, not per connection: turns (by the poller for TLS, by a semaphore for HTTP), how much HTTP is parsed and
// written at a time (work), and what is taken of the host: descriptors, ports, bytes in this process and in the kernel (reserve).
//
// HTTP is parsed by net/http's server and written again by net/http's transport, through
// httputil.ReverseProxy: what the origin gets is one well-formed request whose Host is the name that
// was checked, so the two cannot disagree about where a request ends, and every request of a kept
// connection is checked. A client's connection has a transport of its own: no origin connection is
// shared between clients or outlives the client's connection. Of upgrades only WebSocket passes: h2c
// or TLS inside would carry further requests that are not checked.
package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/poller"
)

// Guard accepts the connections that come to a gateway. Make one with New.
type Guard struct {
	cfg       Config
	endpoints endpoints
	open      atomic.Int64 // connections of clients
	turns     *semaphore
	work      *work
	server    *http.Server
	proxy     *httputil.ReverseProxy

	loops   []*poller.Loop
	carried atomic.Uint32 // connections, by which the next one's loop is chosen
	stop    context.CancelFunc
	running sync.WaitGroup
}

// New checks cfg and makes a guard that does nothing until Start.
func New(cfg Config) (*Guard, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("cannot make the guard: %w", err)
	}
	cfg.TLSPort, cfg.HTTPPort = cmp.Or(cfg.TLSPort, 443), cmp.Or(cfg.HTTPPort, 80)
	if cfg.Decided == nil {
		cfg.Decided = func(decisions.Decision) {}
	}
	g := &Guard{cfg: cfg}
	g.endpoints.active = map[<-chan struct{}]*endpointState{}
	g.turns, g.work = newSemaphore(runtime.GOMAXPROCS(0)), newWork(runtime.GOMAXPROCS(0))
	g.proxy = g.newProxy()
	g.server = g.newServer()
	return g, nil
}

// Start begins to accept connections and returns; it is called once. Connections are served until Shutdown,
// or until ctx ends, after which Shutdown must still be called.
func (g *Guard) Start(ctx context.Context) error {
	ctx, g.stop = context.WithCancel(ctx)
	if err := g.makeLoops(ctx); err != nil {
		g.stop()
		g.closeListeners()
		for _, l := range g.loops {
			l.Close()
		}
		return fmt.Errorf("cannot start the guard: %w", err)
	}
	plain := &httpListener{TCPListener: g.cfg.HTTP, guard: g, life: ctx}
	g.server.BaseContext = func(net.Listener) context.Context { return ctx }
	for _, l := range g.loops {
		g.running.Go(func() {
			if err := l.Run(); err != nil {
				g.cfg.Logger.Error().Err(err).Msg("guard stopped serving TLS connections")
			}
		})
	}
	g.running.Go(func() {
		if err := g.server.Serve(plain); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			g.cfg.Logger.Error().Err(err).Msg("guard stopped accepting HTTP")
		}
	})
	g.running.Go(func() {
		<-ctx.Done()
		g.closeListeners()
		_ = g.server.Close()
		g.endpoints.abortAll()
		for _, l := range g.loops {
			l.Post(l.Stop)
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
	_, _ = g.cfg.TLS.Close(), g.cfg.HTTP.Close()
}

// makeLoops makes the loops of TLS connections, half as many as there are processors: the other half is for the rest
// of the service.
func (g *Guard) makeLoops(ctx context.Context) error {
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		l, err := poller.New()
		if err != nil {
			return err
		}
		g.loops = append(g.loops, l)
	}
	accepts := func(l *poller.Loop, fd int, source netip.Addr) *poller.Session {
		if s := g.newSession(ctx, l, fd, source); s != nil {
			return &s.Session
		}
		return nil
	}
	err := poller.Accept(g.loops, g.cfg.TLS, accepts, func(err error) {
		g.cfg.Logger.Error().Err(err).Msg("guard cannot accept a TLS connection")
	})
	return errors.Join(err, g.cfg.TLS.Close()) // the loops have a descriptor of their own, which Go's poller does not watch
}

// Open returns how many connections of clients are open.
func (g *Guard) Open() int64 { return g.open.Load() }
