package e2b

import (
	"context"
	"crypto/hmac"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/httplog"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/lasting"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Ports of sandboxes have hosts of their own, <port>-<id>.<domain>, as clients' getHost has it. What is asked of one goes
// through the agent to the container's own loopback: nothing leads into its network, and it need not have any.

const (
	// ownPort is the port at which E2B's sandboxes answer the calls into them.
	ownPort = 49983
	// trafficHeader has the token for a sandbox that does not let everybody look at its ports.
	trafficHeader = "E2b-Traffic-Access-Token"
)

// Bounds of connections to ports.
const (
	maxPortConns    = 64   // of one sandbox
	maxAllPortConns = 2000 // of all, of which the sandboxes of each owner have a share
	keptPortConns   = 4    // of one port, that wait for the next request
	keptPortIdle    = 15 * time.Second
	// idlePortConn is after how long a connection breaks on which nothing has come or gone.
	idlePortConn = 10 * time.Minute
	maxPortHead  = 256 << 10 // of an answer, in bytes
)

// note is what is kept of a sandbox here, beside what lasting knows.
type note struct {
	// Private wants the traffic token of who asks for something at a port.
	Private bool `json:"private,omitzero"`
}

func noteOf(i lasting.Info) (n note) {
	if len(i.Note) > 0 && json.Unmarshal(i.Note, &n) != nil {
		n.Private = true // what cannot be read is not taken for leave
	}
	return n
}

// portHost is what a host's name says: a port of a sandbox.
type portHost struct {
	id   string
	port int
}

// hostBelow reads a Host header that is below the domain: the port of a sandbox, or the name of the control plane.
func (s *server) hostBelow(host string) (at portHost, below bool) {
	if s.cfg.Domain == "" {
		return portHost{}, false
	}
	label, in := strings.CutSuffix(nameOf(host), "."+nameOf(s.cfg.Domain))
	if !in {
		return portHost{}, false
	}
	if label == "api" {
		return portHost{}, true
	}
	number, id, cut := strings.Cut(label, "-")
	port, err := strconv.ParseUint(number, 10, 16)
	if !cut || id == "" || strings.Contains(id, ".") || err != nil || port == 0 || strconv.FormatUint(port, 10) != number {
		return portHost{}, false
	}
	return portHost{id, int(port)}, true
}

// nameOf is the name of a host, which may have a port, as names are compared.
func nameOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// ports is the way to sandboxes' ports.
type ports struct {
	of    *server
	conns share
	proxy httputil.ReverseProxy
}

type portKey struct{}

func newPorts(s *server) *ports {
	p := &ports{of: s, conns: newShare(maxAllPortConns, maxPortConns)}
	p.proxy = httputil.ReverseProxy{
		Rewrite: p.rewrite, ModifyResponse: func(answer *http.Response) error { hostsOwn(answer.Header); return nil }, ErrorHandler: p.failed, FlushInterval: -1, ErrorLog: httplog.New(s.cfg.Log, "ports of E2B's sandboxes"),
		Transport: &http.Transport{
			DialContext: p.dial, DisableCompression: true, MaxIdleConnsPerHost: keptPortConns, IdleConnTimeout: keptPortIdle,
			MaxResponseHeaderBytes: maxPortHead, ExpectContinueTimeout: time.Second,
		},
	}
	return p
}

// serve answers what is asked of a port.
func (p *ports) serve(at portHost, w http.ResponseWriter, req *http.Request) {
	b, err := p.admit(at, req)
	if err != nil {
		p.fail(w, at, err)
		return
	}
	// It may be anybody: what strangers ask counts for the sandbox, and keeps nobody from what else the owner has.
	asked, err := p.of.cfg.Service.Scoped(ids.Everyone(), quota.Token{}).Ask(b.ID())
	if err != nil {
		fail(w, err)
		return
	}
	defer asked()
	ctx, cancel := p.of.cfg.Tokens.Hold(context.WithValue(req.Context(), portKey{}, at), p.of.owner(b.Info()))
	defer cancel()
	if req.Header.Get("Upgrade") != "" { // what it becomes has no end by itself
		defer context.AfterFunc(p.of.cfg.Life, cancel)()
	}
	req, done, err := p.of.called(w, req.WithContext(ctx), b)
	if err != nil {
		p.fail(w, at, err)
		return
	}
	if done != nil {
		defer done()
		p.proxy.ServeHTTP(w, req)
	}
}

// admit finds the sandbox.
func (p *ports) admit(at portHost, req *http.Request) (*lasting.Sandbox, error) {
	b, err := p.of.cfg.Sandboxes.Any(at.id)
	if err != nil {
		return nil, ended{at.id, "the sandbox was not found"}
	}
	header := req.Header
	if said, is := sentBy(req.Context()); is {
		return p.of.sentTo(said)
	}
	if tokens := header.Values(trafficHeader); noteOf(b.Info()).Private &&
		(len(tokens) != 1 || !hmac.Equal([]byte(tokens[0]), []byte(p.of.trafficToken(p.of.owner(b.Info()), at.id)))) {
		return nil, errs.Denied("the ports of this sandbox are not for everybody: send its traffic token as %s", strings.ToLower(trafficHeader))
	}
	return b, nil
}

// rewrite makes a request that of the program in the sandbox: to the same host, and with none of the service's secrets.
func (p *ports) rewrite(r *httputil.ProxyRequest) {
	at := r.In.Context().Value(portKey{}).(portHost)
	r.Out.URL.Scheme, r.Out.URL.Host = "http", net.JoinHostPort(at.id, strconv.Itoa(at.port))
	r.Out.URL.RawQuery = r.In.URL.RawQuery // nothing here reads it
	r.Out.Host = r.In.Host
	behind := isLoopback(r.In.RemoteAddr)
	if behind { // the operator's own proxy, which knows more
		r.Out.Header["X-Forwarded-For"] = r.In.Header["X-Forwarded-For"]
	}
	r.SetXForwarded()
	if p.of.cfg.TLS {
		r.Out.Header.Set("X-Forwarded-Proto", "https")
	}
	if proto := r.In.Header.Get("X-Forwarded-Proto"); behind && proto != "" {
		r.Out.Header.Set("X-Forwarded-Proto", proto)
	}
	r.Out.Header.Del(trafficHeader)
	hostsOwn(r.Out.Header)
	if _, is := p.of.keyed(r.In); is {
		r.Out.Header.Del("X-Api-Key")
	}
	if b, err := p.of.cfg.Sandboxes.Any(at.id); err != nil || hmac.Equal([]byte(r.In.Header.Get("X-Access-Token")), []byte(p.of.accessToken(p.of.owner(b.Info()), at.id))) {
		r.Out.Header.Del("X-Access-Token")
	}
}

// hostsOwn takes away what hosts say to each other: programs neither hear it nor say it.
func hostsOwn(header http.Header) {
	maps.DeleteFunc(header, func(name string, _ []string) bool { return strings.HasPrefix(name, "X-Daycare-") })
}

func isLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// dial connects to a sandbox's port, for the transport, whose address it is.
func (p *ports) dial(ctx context.Context, _, address string) (net.Conn, error) {
	id, number, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(number)
	if err != nil {
		return nil, err
	}
	b, err := p.of.cfg.Sandboxes.Any(id)
	if err != nil {
		return nil, err
	}
	owner := b.Info().Owner
	if !p.conns.take(owner, id, 1) {
		p.proxy.Transport.(*http.Transport).CloseIdleConnections()
		return nil, errs.Busy("there are as many connections to ports of sandbox %q as may be: try again when one has ended", id)
	}
	conn, err := b.Dial(ctx, port)
	if err != nil {
		p.conns.give(owner, id, 1)
		return nil, errClosedPort{err}
	}
	return newPortConn(conn, func() { p.conns.give(owner, id, 1) }), nil
}

// errClosedPort is of a port at which nobody listens.
type errClosedPort struct{ error }

func (e errClosedPort) Unwrap() error { return e.error }

// failed answers where the program in the sandbox did not.
func (p *ports) failed(w http.ResponseWriter, req *http.Request, err error) {
	at := req.Context().Value(portKey{}).(portHost)
	p.of.cfg.Log.Debug().Err(err).Str("sandbox", at.id).Int("port", at.port).Msg("a port did not answer")
	closed, is := errors.AsType[errClosedPort](err)
	switch {
	case is && !cerrdefs.IsUnavailable(closed):
		err = ended{at.id, "the sandbox is running but nothing listens at port " + strconv.Itoa(at.port) + " of its loopback"}
	case errors.Is(err, context.Canceled), is, cerrdefs.IsResourceExhausted(err), cerrdefs.IsNotFound(err):
	default:
		err = ended{at.id, "the program at the port gave no answer that could be passed on"}
	}
	p.fail(w, at, err)
}

// fail tells as whoever stands before E2B's sandboxes does.
func (p *ports) fail(w http.ResponseWriter, at portHost, err error) {
	if cerrdefs.IsNotFound(err) {
		err = ended{at.id, "the sandbox was not found"}
	}
	fail(w, err)
}
