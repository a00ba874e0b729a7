package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/httplog"
)

// forwarding is one request on its way.
type forwarding struct {
	session *httpSession
	name    string
	request *http.Request // if the connection is read
	puts    []put
	decided atomic.Bool
	asked   int          // how many bytes of the client are kept while the answer comes
	interim atomic.Int32 // answers before the answer
	body    *clientBody
	origin  atomic.Pointer[originConn] // the last that the request was put on
}

type forwardingKey struct{}

func forwardingOf(ctx context.Context) *forwarding {
	return ctx.Value(forwardingKey{}).(*forwarding)
}

// decide reports the first verdict only: a request that was passed on and then failed was allowed.
// Whose fault that was is recorded by fail.
func (fw *forwarding) decide(r *refusal) {
	if fw.decided.CompareAndSwap(false, true) {
		fw.tell("", r)
	}
}

// tell reports a verdict; one about a request that is read has its method, path and status.
func (fw *forwarding) tell(status string, r *refusal) {
	if fw.request == nil {
		fw.session.decide(fw.name, r)
		return
	}
	text := requestText(fw.request) + status
	if len(fw.puts) == 0 {
		fw.session.tell(fw.name, "", text, r)
	}
	for _, p := range fw.puts {
		fw.session.tell(fw.name, p.Name, text, r)
	}
}

// fail records why a forwarded request was broken off. A connection that simply ends was not broken
// off.
func (fw *forwarding) fail(r *refusal) {
	if fw.session.life.Err() == nil {
		fw.decided.Store(true)
		fw.tell("", r)
	}
}

// RoundTrip uses the transport of the client's own connection.
func (*forwarding) RoundTrip(r *http.Request) (*http.Response, error) {
	return forwardingOf(r.Context()).session.transport.RoundTrip(r)
}

// forward passes an allowed request on, and its answer back.
func (s *httpSession) forward(to http.ResponseWriter, r *http.Request, name string, puts []put) {
	defer s.served()
	fw := &forwarding{session: s, name: name, puts: puts, asked: s.keeps()}
	if s.read.Load() != nil {
		fw.request = r
	}
	life, cancel := context.WithCancelCause(s.life)
	defer cancel(nil)
	defer context.AfterFunc(r.Context(), func() { fw.halfClosed(life, cancel) })()
	ctx := context.WithValue(life, forwardingKey{}, fw)
	ctx = httptrace.WithClientTrace(ctx,
		&httptrace.ClientTrace{GotConn: fw.gotConn, Got1xxResponse: fw.gotInterim})
	// Present but empty: the server adds neither of them to an answer that lacks it.
	to.Header()["Content-Type"] = nil
	to.Header()["Date"] = nil
	defer func() {
		if o := fw.origin.Load(); o != nil {
			o.inHead.Store(true)
			if fw.request != nil { // the origin has it, whether it has answered or not
				fw.decide(&refusal{verdict: decisions.Allowed, reason: reasonAllowed})
			}
		}
		if fw.body != nil {
			fw.body.over.Store(true)
		}
	}()
	asking := r.Context()
	// A copy, because the server looks at the type of its own request's body.
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		fw.body = &clientBody{ReadCloser: r.Body, session: s, asking: asking}
		r.Body = fw.body
	}
	s.guard.proxy.ServeHTTP(clientWriter{to, fw}, r)
}

// halfClosed is called when the client has ended its half. The client may still wait for the
// answer, but net/http takes this for its end, and has cancelled the request's context.
func (fw *forwarding) halfClosed(life context.Context, cancel context.CancelCauseFunc) {
	if fw.session.read.Load() != nil { // no client of TLS waits for an answer after its own end
		cancel(nil)
		return
	}
	end := time.AfterFunc(fw.session.guard.cfg.Limits.HalfClosedIdle, func() {
		cancel(&refusal{verdict: decisions.Failed, reason: reasonHalfClosed})
	})
	context.AfterFunc(life, func() { end.Stop() })
}

func (fw *forwarding) gotConn(info httptrace.GotConnInfo) {
	fw.origin.Store(originOf(info.Conn))
	if fw.request != nil {
		return // its answer's status is told, too
	}
	fw.decide(&refusal{verdict: decisions.Allowed, reason: reasonAllowed})
}

// originOf returns the connection below TLS, if there is TLS.
func originOf(c net.Conn) *originConn {
	if secure, is := c.(*tls.Conn); is {
		c = secure.NetConn()
	}
	return c.(*originConn)
}

const maxInterim = 16

var errInterim = errors.New("the server sends too many interim answers")

// gotInterim is called when an answer such as 103 has been passed on, so that nothing of it is
// kept.
func (fw *forwarding) gotInterim(int, textproto.MIMEHeader) error {
	if fw.interim.Add(1) > maxInterim {
		return errInterim
	}
	fw.session.free(fw.asked)
	return nil
}

// newTransport returns the transport to origins for one client connection. Its pool is keyed by
// name, and each name was allowed for this client when it was connected to.
func (s *httpSession) newTransport() *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			name, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, fmt.Errorf("cannot connect to %q: %w", addr, err)
			}
			s.rest()
			c, to, refused := s.connect(ctx, name)
			if refused != nil {
				return nil, refused
			}
			return &originConn{socket: newSocket(s.guard.newEnd(c, s.who.User(), &s.owned), s),
				to: to}, nil
		},
		DisableCompression:     true,
		MaxIdleConns:           1,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        5 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		ReadBufferSize:         2 << 10,
		WriteBufferSize:        1 << 10,
		Protocols:              s.guard.server.Protocols,
	}
	if s.read.Load() != nil {
		return s.readTransport(t)
	}
	return t
}

func (g *Guard) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:      (*forwarding)(nil),
		Rewrite:        rewrite,
		FlushInterval:  -1,
		BufferPool:     &buffers{},
		ErrorLog:       httplog.New(g.cfg.Logger, "guard"),
		ModifyResponse: answered,
		ErrorHandler:   answerFailure,
	}
}

// rewrite makes the request that the origin gets: the client's own, except for the host, which is
// the one that was checked, and the hop-by-hop fields.
func rewrite(pr *httputil.ProxyRequest) {
	fw := forwardingOf(pr.In.Context())
	pr.Out.URL.Scheme = "http"
	if fw.request != nil {
		pr.Out.URL.Scheme = "https"
	}
	pr.Out.URL.Host = fw.name
	pr.Out.Host = fw.name
	// The program does not know of this proxy: it neither hides nor adds anything.
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery
	for _, field := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host",
		"X-Forwarded-Proto"} {
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
	for _, p := range fw.puts { // last, so that no field of the client's takes it out again
		if p.Methods != nil || p.Paths != nil {
			for _, field := range overriding {
				pr.Out.Header.Del(field)
			}
		}
		p.into(pr.Out)
	}
}

// overriding are fields by which some servers take a request for one of another method or path.
var overriding = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override",
	"X-Original-Url", "X-Rewrite-Url"}

var errSwitch = errors.New("the server switched to a protocol that was not asked for")

// answered looks at the head of an answer. It refuses a switch of protocols that was not asked for.
func answered(r *http.Response) error {
	fw := forwardingOf(r.Request.Context())
	origin := fw.origin.Load()
	origin.inHead.Store(false)
	if fw.request != nil && fw.decided.CompareAndSwap(false, true) {
		fw.tell(fmt.Sprintf(" %d", r.StatusCode),
			&refusal{verdict: decisions.Allowed, reason: reasonAllowed})
	}
	if read := fw.session.read.Load(); read != nil {
		read.redact(r.Header)
		r.Status = "" // and so net/http's own text
	}
	if r.StatusCode == http.StatusSwitchingProtocols {
		if r.Request.Header.Get("Upgrade") == "" {
			return errSwitch
		}
		origin.switched.Store(true)
		return nil // its body is the connection
	}
	r.Body = &originBody{ReadCloser: r.Body, forwarding: fw, answer: r}
	return nil
}

// buffers are the buffers that bodies pass through; an idle connection has none.
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 16<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
