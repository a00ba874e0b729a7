// Package guard is the transparent proxy that checks the name on every outbound TCP connection of a
// filtered container. It accepts what the container sends to ports 443 and 80 of any address, reads
// the name that the program asks for, and connects to that name by itself. Which address the
// program dialled does not matter, so a shared address, a spoofed hosts file or a stale answer buys
// nothing.
//
// TLS is not decrypted, but for the hosts of credentials that a client's call has (reading). The
// ClientHello is parsed here, with cryptobyte, rather than by crypto/tls:
// the guard must find exactly the name that the server will find or none at all, so it refuses what
// a lenient parser would pass over (two names, an extension given twice, bytes behind the hello),
// and it needs the bytes as they came in order to send them on. crypto/tls is the oracle in the
// tests. A server may answer with a HelloRetryRequest; the second hello is then held to the first
// one's name. Of Encrypted Client Hello only the outer name is seen, and that is what must be
// allowed; what goes on inside TLS (another Host, a renegotiation) is not seen at all.
//
// After that the bytes are spliced in the kernel. A flow has goroutines of its own, and everything
// that it copies goes through an end, in turns by user. A poller of our own, with sessions as state
// machines, was measured beside this on two cores, in `make bench`. It took 0.44 ms of processor for
// a connection instead of 0.68, most of the rest being Go's scheduler and its monitor, 0.57 s for a
// gibibyte instead of 0.65, and no memory to speak of for 1,500 idle connections instead of 15 MiB.
// But it was a thousand lines more, and HTTP could not use it.
//
// These are per user, not per connection: turns to copy (end), how much HTTP is parsed and written at
// a time (work), and what is taken of the host: descriptors, ports, bytes in this process and in
// the kernel (reserve).
//
// HTTP is parsed by net/http's server and written again by net/http's transport, through
// httputil.ReverseProxy: what the origin gets is one well-formed request whose Host is the name
// that was checked, so the two cannot disagree about where a request ends, and every request of a
// kept connection is checked. A client's connection has a transport of its own: no origin
// connection is shared between clients or outlives the client's connection. Of upgrades only
// WebSocket passes: h2c or TLS inside would carry further requests that are not checked.
package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/daycare-run/sandbox/internal/fair"
)

// Guard accepts the connections that come to a gateway. Make one with New.
type Guard struct {
	cfg     Config
	clients clients
	open    atomic.Int64 // connections of clients
	turns   fair.Turns   // to copy
	pipes   *pipes
	work    fair.Turns // to process what was read
	server  *http.Server
	reader  *http.Server // of connections that are read
	readers *handover    // to the reader
	proxy   *httputil.ReverseProxy

	life    context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
}

// New checks cfg and makes a guard that does nothing until Start.
func New(cfg Config) (*Guard, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("cannot make the guard: %w", err)
	}
	cfg.TLSPort, cfg.HTTPPort = cmp.Or(cfg.TLSPort, 443), cmp.Or(cfg.HTTPPort, 80)
	// The other half of the processors is for the rest of the service.
	g := &Guard{cfg: cfg, turns: fair.Turns{All: max(1, runtime.GOMAXPROCS(0)/2)},
		work: fair.Turns{Each: runtime.GOMAXPROCS(0)}}
	g.clients.active = map[<-chan struct{}]*clientState{}
	g.pipes = &pipes{inUse: fair.NewPool(maxPipes, 0)}
	g.proxy = g.newProxy()
	g.server, g.reader = g.newServer(), g.newReader()
	return g, nil
}

// Start begins to accept connections and returns; it is called once. Connections are served until
// Shutdown, or until ctx ends, after which Shutdown must still be called.
func (g *Guard) Start(ctx context.Context) error {
	ctx, g.stop = context.WithCancel(ctx)
	g.life, g.readers = ctx, &handover{conns: make(chan net.Conn), life: ctx}
	secure := &listener{TCPListener: g.cfg.TLS, guard: g, life: ctx, port: g.cfg.TLSPort}
	plain := httpListener{&listener{TCPListener: g.cfg.HTTP, guard: g, life: ctx,
		port: g.cfg.HTTPPort, plain: true}}
	g.server.BaseContext = func(net.Listener) context.Context { return ctx }
	g.running.Go(func() {
		for {
			f, client, err := secure.next()
			if err != nil {
				return
			}
			g.running.Go(func() { g.serveTLS(ctx, f, client) })
		}
	})
	g.running.Go(func() {
		if err := g.server.Serve(plain); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			g.cfg.Logger.Error().Err(err).Msg("guard stopped accepting HTTP")
		}
	})
	if g.cfg.Secrets != nil {
		g.reader.BaseContext = g.server.BaseContext
		g.running.Go(func() { _ = g.reader.Serve(g.readers) })
		g.running.Go(func() { g.watchSecrets(ctx) })
	}
	g.running.Go(func() {
		<-ctx.Done()
		g.closeListeners()
		g.clients.abortAll() // first, for TLS would wait until its end is taken
		_, _ = g.server.Close(), g.reader.Close()
		g.pipes.close()
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

// Carry passes bytes between a client and a server, taking turns with the connections of all
// users. It returns when both sides have ended, or ctx has, and closes the two connections.
func (g *Guard) Carry(ctx context.Context, who Client, near, far *net.TCPConn) {
	o := &owned{}
	defer o.close()
	defer context.AfterFunc(ctx, o.abort)()
	defer context.AfterFunc(g.life, o.abort)()
	a, b := o.own(near), o.own(far) // each closes what it does not own
	if a && b {
		user := who.User()
		r := relay{owned: o, pipes: g.pipes, client: g.newEnd(near, user, o),
			origin: g.newEnd(far, user, o), atOnce: true, idle: g.cfg.Limits.HalfClosedIdle}
		r.run(ctx)
	}
}

// Open returns how many connections of clients are open.
func (g *Guard) Open() int64 { return g.open.Load() }
