package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster"
)

var (
	errMoved      = errors.New("the user is another host's")
	errNotReached = errors.New("the host cannot be reached")
)

// away is a call that another host answers.
type away struct {
	seat cluster.Seat
	end  context.CancelCauseFunc
}

// smallBody is the largest body that is kept to be sent again. A larger body is sent once the host
// has taken the call.
const smallBody = 64 << 10

// sending is the body of a call, which may have to be sent twice.
type sending struct {
	wire  string
	ready bool
	small []byte
	large *watched // nil for a small one
}

// watched is a body that records whether it was read.
type watched struct {
	io.Reader
	mu   sync.Mutex
	read bool
}

func (b *watched) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.read = true
	b.mu.Unlock()
	return b.Reader.Read(p)
}

func (s *sending) prepare(req *http.Request) (err error) {
	if s.ready {
		return nil
	}
	s.ready = true
	switch {
	case req.Body == nil || req.ContentLength == 0:
	case req.ContentLength > 0 && req.ContentLength <= smallBody:
		s.small, err = io.ReadAll(req.Body)
	default:
		s.large = &watched{Reader: req.Body}
	}
	return err
}

// restore gives a request its body back if that was read for sending and then not sent.
func (s *sending) restore(req *http.Request) {
	if s.ready && s.large == nil {
		req.Body = io.NopCloser(bytes.NewReader(s.small))
	}
}

// silentWriter does not pass on 100 (Continue): the caller has not asked for it.
type silentWriter struct{ http.ResponseWriter }

func (w silentWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w silentWriter) WriteHeader(code int) {
	if code != http.StatusContinue {
		w.ResponseWriter.WriteHeader(code)
	}
}

func (s *sending) attach(out *http.Request) error {
	if s.large == nil {
		out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(s.small)), int64(len(s.small))
		if len(s.small) == 0 {
			out.Body = http.NoBody
		}
		return nil
	}
	s.large.mu.Lock()
	defer s.large.mu.Unlock()
	if s.large.read {
		return fmt.Errorf("the user moved to another host while the call was sent: ask again: %w",
			cerrdefs.ErrUnavailable)
	}
	out.Body = io.NopCloser(s.large)
	out.Header.Set("Expect", "100-continue")
	return nil
}

// dress turns the caller's request into the one for the other host. A call of a wire other than the
// API's is sent as it came: its credentials are those of a sandbox, or of a program in a sandbox.
func (s *sending) dress(pr *httputil.ProxyRequest, id string) {
	if s.wire == "" {
		pr.Out.Header.Del("Authorization")
		pr.Out.Header.Set("X-Request-Id", id)
		return
	}
	pr.Out.Host, pr.Out.URL.RawQuery = pr.In.Host, pr.In.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host",
		"X-Forwarded-Proto"} {
		if values, given := pr.In.Header[name]; given {
			pr.Out.Header[name] = values
		}
	}
}

// track returns a context for a call that a seat's host answers. It ends when end is called or that
// host loses the seat.
func (r *Router) track(ctx context.Context, seat cluster.Seat) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	out := &away{seat, cancel}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away[out] = true
	return ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.away, out)
		cancel(nil)
	}
}

// send lets the host that holds a user answer a call. If it returns errMoved or errNotReached,
// nothing was begun, and nothing was answered.
func (r *Router) send(waiting context.Context, w http.ResponseWriter, req *http.Request,
	caller access.Caller, seat cluster.Seat, body *sending) error {
	p, err := r.peer(waiting, seat.Host)
	if err != nil {
		return err
	}
	if err := body.prepare(req); err != nil {
		return err
	}
	ctx, end := r.track(req.Context(), seat)
	defer end()
	begun := time.Now()
	said := r.about(caller)
	said.User, said.Epoch, said.Wire, said.Remote = seat.User, seat.Epoch, body.wire, req.RemoteAddr
	id := w.Header().Get("X-Request-Id")
	var failed error
	proxy := httputil.ReverseProxy{
		Transport: p.transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetURL(p.url)
			body.dress(pr, id)
			failed = errors.Join(said.write(pr.Out.Header), body.attach(pr.Out))
		},
		ModifyResponse: func(answer *http.Response) error {
			switch {
			case answer.StatusCode != http.StatusMisdirectedRequest, body.wire != "" &&
				answer.Header.Get(movedHeader)+answer.Header.Get(fencedHeader) == "":
			case answer.Header.Get(fencedHeader) != "":
				return errNotReached
			default:
				return errMoved
			}
			w.Header().Del("X-Request-Id") // the host sends it, too
			r.counted(func(c *Counts) { c.Forwarded++; c.Took += time.Since(begun) })
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
	}
	proxy.ServeHTTP(silentWriter{w}, req.WithContext(ctx))
	if w.Header().Get("X-Request-Id") == "" && id != "" {
		w.Header().Set("X-Request-Id", id)
	}
	switch lost := context.Cause(ctx); {
	case failed == nil, errors.Is(failed, errMoved):
		return failed
	case errors.Is(failed, errNotReached):
		p.answered(false)
		return errNotReached
	case lost != nil && req.Context().Err() == nil:
		return lost
	case req.Context().Err() != nil:
		return context.Cause(req.Context())
	case cerrdefs.IsUnavailable(failed):
		return failed
	default:
		r.counted(func(c *Counts) { c.Lost++ })
		return lostError(seat.Host)
	}
}

// about returns what another host needs to know about a caller.
func (r *Router) about(caller access.Caller) about {
	return about{Caller: caller.Name, Token: caller.Token, Everyone: caller.Users.All(),
		Users: caller.Users.IDs()}
}

func lostError(host string) error {
	return fmt.Errorf(
		"host %q was lost while it answered the call; how far it got is not known, and it is not repeated: %w",
		host, cerrdefs.ErrUnavailable)
}

// lostGrace is how long an answer may be on its way after its user's seat has gone.
const lostGrace = time.Second

// recall ends calls sent to a host that does not hold their user any more: that host may never
// answer.
func (r *Router) recall(now cluster.Seat) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for a := range r.away {
		if a.seat.User == now.User && a.seat != now {
			time.AfterFunc(lostGrace, func() {
				r.mu.Lock()
				still := r.away[a]
				r.mu.Unlock()
				if still {
					a.end(lostError(a.seat.Host))
				}
			})
		}
	}
}

// peer is the connection to another host.
type peer struct {
	transport *http.Transport
	url       *url.URL
	address   string

	mu    sync.Mutex
	heard time.Time // when the host answered last
}

func (p *peer) answered(does bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heard = time.Now(); !does {
		p.heard = time.Time{}
	}
}

func (p *peer) silent() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.heard) > silence
}

const (
	probeEvery = time.Second
	silence    = 3 * time.Second
)

// peer returns the peer of a host that answers. Nothing is sent to a silent host, so the call can
// be sent elsewhere.
func (r *Router) peer(ctx context.Context, host string) (*peer, error) {
	node, ok := r.cfg.Cluster.Node(host)
	if !ok {
		return nil, errNotReached
	}
	p := r.connect(node)
	if p.silent() && !r.ask(ctx, p) {
		return nil, errNotReached
	}
	return p, nil
}

func (r *Router) connect(node cluster.Node) *peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.nodes[node.Name]
	if p != nil && p.address == node.Address {
		return p
	}
	if p != nil {
		p.transport.CloseIdleConnections()
	}
	dialer := &net.Dialer{Timeout: time.Second}
	p = &peer{address: node.Address, url: &url.URL{Scheme: "https", Host: node.Address}}
	p.transport = &http.Transport{
		TLSClientConfig: r.cfg.Certificates.Client(node.Name), TLSHandshakeTimeout: 2 * time.Second,
		DisableCompression: true, MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute,
		ExpectContinueTimeout: time.Minute,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, fmt.Errorf("%w: %v", errNotReached, err)
			}
			return conn, nil
		},
	}
	r.nodes[node.Name] = p
	return p
}

// PingPath is the path at which a host tells other hosts that it is up.
const PingPath = "/cluster/ping"

// ask reports whether a host answers.
func (r *Router) ask(ctx context.Context, p *peer) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url.String()+PingPath, nil)
	if err != nil {
		return false
	}
	answer, err := p.transport.RoundTrip(req)
	if err == nil {
		_ = answer.Body.Close()
	}
	p.answered(err == nil)
	return err == nil
}

// probe asks each host once a second until ctx ends.
func (r *Router) probe(ctx context.Context) {
	for ctx.Err() == nil {
		var asking sync.WaitGroup
		for _, node := range r.cfg.Cluster.Nodes() {
			if node.Name != r.cfg.Cluster.Host() {
				asking.Go(func() { r.ask(ctx, r.connect(node)) })
			}
		}
		asking.Wait()
		cluster.Wait(ctx, probeEvery)
	}
}
