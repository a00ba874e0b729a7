package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// forwarding is one request on its way.
type forwarding struct {
	web     *web
	name    string
	decided atomic.Bool
}

type forwardingKey struct{}

func forwardingOf(ctx context.Context) *forwarding {
	return ctx.Value(forwardingKey{}).(*forwarding)
}

// decide tells of the first verdict only: a request that was passed on and then failed was allowed.
func (fw *forwarding) decide(r *refusal) {
	if fw.decided.CompareAndSwap(false, true) {
		fw.web.decide(fw.name, r)
	}
}

// RoundTrip uses the transport of the client's own connection.
func (*forwarding) RoundTrip(r *http.Request) (*http.Response, error) {
	return forwardingOf(r.Context()).web.transport.RoundTrip(r)
}

// forward passes an allowed request on, and its answer back.
func (w *web) forward(to http.ResponseWriter, r *http.Request, name string) {
	fw := &forwarding{web: w, name: name}
	// A client may end its half and still wait for the answer. To net/http that is the client's end, and
	// so it ends the request's context.
	life, cancel := context.WithCancel(w.life)
	defer cancel()
	defer context.AfterFunc(r.Context(), func() {
		late := time.AfterFunc(w.guard.cfg.Limits.HalfClosedIdle, cancel)
		context.AfterFunc(life, func() { late.Stop() })
	})()
	ctx := context.WithValue(life, forwardingKey{}, fw)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { fw.decide(&refusal{verdict: Allowed, reason: reasonAllowed}) },
	})
	// Present but empty: the server adds neither of them to an answer that lacks it.
	to.Header()["Content-Type"] = nil
	to.Header()["Date"] = nil
	w.guard.proxy.ServeHTTP(to, r.WithContext(ctx))
}

// newTransport makes what connects to origins for one client connection. Its pool is keyed by
// name, and each name was allowed to this client when it was connected to.
func (w *web) newTransport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			name, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, fmt.Errorf("cannot connect to %q: %w", addr, err)
			}
			c, refused := w.connect(ctx, name)
			if refused != nil {
				return nil, refused
			}
			return &originConn{TCPConn: c, web: w}, nil
		},
		DisableCompression:     true,
		MaxIdleConns:           2,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        5 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		ReadBufferSize:         2 << 10,
		WriteBufferSize:        1 << 10,
		Protocols:              w.guard.web.Protocols,
	}
}

// originConn is disowned when it is closed.
type originConn struct {
	*net.TCPConn
	web *web
}

func (c *originConn) Close() error { return c.web.disown(c.TCPConn) }

func (g *Guard) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     (*forwarding)(nil),
		Rewrite:       rewrite,
		FlushInterval: -1,
		BufferPool:    &buffers{},
		// Every line of it would be a tenant's doing.
		ErrorLog:       log.New(io.Discard, "", 0),
		ModifyResponse: checkSwitch,
		ErrorHandler:   failed,
	}
}

// rewrite makes the request that the origin gets: the client's own but for the host, which is the
// one that was checked, and the hop-by-hop fields.
func rewrite(pr *httputil.ProxyRequest) {
	fw := forwardingOf(pr.In.Context())
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = fw.name
	pr.Out.Host = fw.name
	// Not a proxy that the program knows of: it neither hides nor adds anything.
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	for _, field := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := pr.In.Header[field]; ok {
			pr.Out.Header[field] = values
		}
	}
	// The trailer's values come into this map when the body has been read.
	pr.Out.Trailer = pr.In.Trailer
	if !strings.EqualFold(pr.Out.Header.Get("Upgrade"), "websocket") {
		pr.Out.Header.Del("Upgrade")
		pr.Out.Header.Del("Connection")
	}
}

var errSwitch = errors.New("the server switched to a protocol that was not asked for")

// checkSwitch refuses a switch of protocols without a request for it.
func checkSwitch(r *http.Response) error {
	if r.StatusCode == http.StatusSwitchingProtocols && r.Request.Header.Get("Upgrade") == "" {
		return errSwitch
	}
	return nil
}

// failed answers for an origin that could not be reached, or did not answer.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	fw := forwardingOf(r.Context())
	var why *refusal
	if !errors.As(err, &why) {
		why = &refusal{verdict: Failed, reason: reasonUpstream, err: err}
	}
	if r.Context().Err() == nil {
		fw.decide(why)
	}
	status := http.StatusBadGateway
	if why.verdict == Denied {
		status = http.StatusForbidden
	}
	refuse(w, status, fw.name, *why)
}

// buffers are those that bodies pass through; an idle connection has none.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 16<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
