package e2b

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"html"
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
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// Each port of a sandbox has a host name of its own, <port>-<id>.<domain>, as clients' getHost
// returns it. Requests go through the agent to the container's own loopback: nothing leads into its
// network, and it need not have any.

const (
	// ownPort is the port at which E2B's sandboxes answer the calls into them.
	ownPort = 49983
	// trafficHeader has the token for a sandbox whose ports are private.
	trafficHeader = "E2b-Traffic-Access-Token"
	// portHeader names a port of the sandbox that sandboxHeader names, where the host name does
	// not.
	portHeader = "E2b-Sandbox-Port"
)

// Bounds of connections to ports.
const (
	maxPortConns    = 64   // of one sandbox
	maxAllPortConns = 2000 // of all, of which the sandboxes of each owner have a share
	keptPortConns   = 4    // of one port, that wait for the next request
	keptPortIdle    = 15 * time.Second
	// idlePortConn is how long a connection may be idle in both directions before it is ended.
	idlePortConn = 10 * time.Minute
	maxPortHead  = 256 << 10 // of an answer, in bytes
)

// note is what this package keeps with a sandbox, besides what persistent knows.
type note struct {
	// Private requires the traffic token of whoever calls a port.
	Private bool `json:"private,omitzero"`
}

func noteOf(i persistent.Info) (n note) {
	if len(i.Note) > 0 && json.Unmarshal(i.Note, &n) != nil {
		n.Private = true // what cannot be read permits nothing
	}
	return n
}

// portHost is what a host name stands for: a port of a sandbox.
type portHost struct {
	id   string
	port int
}

// hostBelow reads a Host header that is below the domain: the port of a sandbox, or the name of the
// control plane.
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
	port, valid := parsePort(number)
	if !cut || id == "" || strings.Contains(id, ".") || !valid {
		return portHost{}, false
	}
	return portHost{id, port}, true
}

// headerPort reads the headers that say which port a request for the service's own name is for;
// ownPort if there is none.
func headerPort(header http.Header) (portHost, error) {
	numbers, id := header.Values(portHeader), header.Get(sandboxHeader)
	if len(numbers) == 0 {
		return portHost{id, ownPort}, nil
	}
	port, valid := parsePort(numbers[0])
	switch {
	case len(numbers) > 1 || !valid:
		return portHost{}, invalid("%s %.64q is no port from 1 to 65535", portHeader,
			strings.Join(numbers, ", "))
	case id == "" && port != ownPort:
		return portHost{}, invalid("the call names no sandbox: it has %s, and no header %s",
			portHeader, sandboxHeader)
	}
	return portHost{id, port}, nil
}

// parsePort reads a port as it is written canonically.
func parsePort(text string) (port int, valid bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}

// nameOf returns the name of a host, which may have a port, in the form in which names are
// compared.
func nameOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// ports passes requests on to sandboxes' ports.
type ports struct {
	of    *server
	conns share
	proxy httputil.ReverseProxy
}

type portKey struct{}

func newPorts(s *server) *ports {
	p := &ports{of: s, conns: newShare(maxAllPortConns, maxPortConns)}
	p.proxy = httputil.ReverseProxy{
		Rewrite: p.rewrite, ModifyResponse: func(answer *http.Response) error {
			hostsOwn(answer.Header)
			return nil
		}, ErrorHandler: p.failed, FlushInterval: -1,
		ErrorLog: httplog.New(s.cfg.Log, "ports of E2B's sandboxes"),
		Transport: &http.Transport{
			DialContext: p.dial, DisableCompression: true, MaxIdleConnsPerHost: keptPortConns,
			IdleConnTimeout: keptPortIdle, MaxResponseHeaderBytes: maxPortHead,
			ExpectContinueTimeout: time.Second,
		},
	}
	return p
}

// serve answers a request to a port.
func (p *ports) serve(at portHost, w http.ResponseWriter, req *http.Request) {
	b, err := p.admit(at, req)
	if err != nil {
		p.fail(w, at, err)
		return
	}
	// Anybody may call: strangers' requests count for the sandbox, and use up nothing else that its
	// owner has.
	asked, err := p.of.cfg.Service.Scoped(ids.Everyone(), quota.Token{}).Ask(b.ID())
	if err != nil {
		fail(w, err)
		return
	}
	defer asked()
	ctx, cancel := p.of.cfg.Callers.Tokens.HoldKey(context.WithValue(req.Context(), portKey{}, at),
		p.of.owner(b.Info()))
	defer cancel()
	if req.Header.Get("Upgrade") != "" { // what it becomes does not end by itself
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

// admit returns the sandbox, if the request may reach its ports.
func (p *ports) admit(at portHost, req *http.Request) (*persistent.Sandbox, error) {
	b, err := p.of.cfg.Sandboxes.Any(at.id)
	if cerrdefs.IsNotFound(err) && p.of.mayAsk(&p.of.unknownIDs, askedForID) {
		if err = p.of.known(req.Context(), at.id, err); err == nil {
			b, err = p.of.cfg.Sandboxes.Any(at.id)
		}
	}
	if err != nil {
		return nil, err
	}
	header := req.Header
	if said, is := sentBy(req.Context()); is {
		return p.of.sentTo(said)
	}
	if tokens := header.Values(trafficHeader); noteOf(b.Info()).Private &&
		(len(tokens) != 1 || !hmac.Equal([]byte(tokens[0]),
			[]byte(p.of.trafficToken(p.of.owner(b.Info()), at.id)))) {
		return nil, errs.Denied(
			"the ports of this sandbox are private: send its traffic token as %s",
			strings.ToLower(trafficHeader))
	}
	return b, nil
}

// rewrite makes a request ready for the program in the sandbox: for the same host, and without the
// service's secrets.
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
	for _, name := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if said := r.In.Header.Get(name); behind && said != "" {
			r.Out.Header.Set(name, said)
		}
	}
	r.Out.Header.Del(trafficHeader)
	hostsOwn(r.Out.Header)
	if _, is := p.of.keyed(r.In); is {
		r.Out.Header.Del("X-Api-Key")
	}
	if b, err := p.of.cfg.Sandboxes.Any(at.id); err != nil ||
		hmac.Equal([]byte(r.In.Header.Get("X-Access-Token")),
			[]byte(p.of.accessToken(p.of.owner(b.Info()), at.id))) {
		r.Out.Header.Del("X-Access-Token")
	}
}

// hostsOwn removes the headers that hosts use among themselves: programs neither receive nor send
// them.
func hostsOwn(header http.Header) {
	maps.DeleteFunc(header, func(name string, _ []string) bool {
		return strings.HasPrefix(name, "X-Daycare-")
	})
}

func isLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().Unmap().IsLoopback()
}

// dial connects the transport to a sandbox's port; the address has the sandbox's id and the port.
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
		return nil, errs.Busy(
			"no more connections to ports of sandbox %q are possible now: try again when one has ended",
			id)
	}
	conn, err := b.Dial(ctx, port)
	if err != nil {
		p.conns.give(owner, id, 1)
		return nil, errClosedPort{err}
	}
	return newPortConn(conn, func() { p.conns.give(owner, id, 1) }), nil
}

// errClosedPort is the error for a port that cannot be connected to.
type errClosedPort struct{ error }

func (e errClosedPort) Unwrap() error { return e.error }

// failed answers when the program in the sandbox did not.
func (p *ports) failed(w http.ResponseWriter, req *http.Request, err error) {
	at := req.Context().Value(portKey{}).(portHost)
	p.of.cfg.Log.Debug().Err(err).Str("sandbox", at.id).Int("port", at.port).
		Msg("a port did not answer")
	closed, is := errors.AsType[errClosedPort](err)
	switch {
	case is && !cerrdefs.IsUnavailable(closed):
		if strings.HasPrefix(req.UserAgent(), "Mozilla/") {
			closedPage(w, at)
			return
		}
		err = notOpen{ended{at.id, "The sandbox is running but port is not open"}, at.port}
	case errors.Is(err, context.Canceled), is, cerrdefs.IsResourceExhausted(err),
		cerrdefs.IsNotFound(err):
	default:
		err = ended{at.id, "the program at the port gave no answer that could be passed on"}
	}
	p.fail(w, at, err)
}

// closedPage answers a browser whose port is not open, as the proxy in front of E2B's sandboxes
// does. Nothing in it is the caller's.
func closedPage(w http.ResponseWriter, at portHost) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusBadGateway)
	_, _ = fmt.Fprintf(w, `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Closed Port Error</title>
<h1>Closed port</h1>
<p>Sandbox %s runs, but nothing listens at port %d of its loopback.
Start a server there, then load this page again.</p>
</html>
`, html.EscapeString(at.id), at.port)
}

// fail answers in the form of the proxy in front of E2B's sandboxes.
func (p *ports) fail(w http.ResponseWriter, at portHost, err error) {
	if cerrdefs.IsNotFound(err) {
		err = ended{at.id, "The sandbox was not found"}
	}
	fail(w, err)
}
