package guard

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/httplog"
)

// httpSession is a client's HTTP connection, with everything that was opened on its behalf.
type httpSession struct {
	*flow
	socket    *socket // the client's
	transport *http.Transport
	// life ends with the flow, or with the connection.
	life context.Context
	// unserved says that the server has read the beginning of a request which no handler has got.
	// It is malformed if the server answers then, or closes, and that is told nowhere else.
	unserved atomic.Bool
	hijacked bool
	// refused says that there was no room for a head.
	refused atomic.Bool
	working atomic.Bool // what was read is being worked on

}

type sessionKey struct{}

func sessionOf(ctx context.Context) *httpSession { return ctx.Value(sessionKey{}).(*httpSession) }

func (g *Guard) newServer() *http.Server {
	limits := g.cfg.Limits
	server := &http.Server{
		Handler:                      http.HandlerFunc(g.serveHTTP),
		DisableGeneralOptionsHandler: true,
		MaxHeaderBytes:               limits.HelloBytes,
		ReadHeaderTimeout:            limits.HelloTimeout,
		IdleTimeout:                  limits.HTTPIdle,
		ErrorLog:                     httplog.New(g.cfg.Logger, "guard"),
		Protocols:                    new(http.Protocols),
		ConnState:                    g.connState,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			s := connOf(c).session
			s.socket, s.transport = connOf(c).socket, s.newTransport()
			if s.life == nil {
				s.life = s.context(ctx)
			} else { // without it ReverseProxy would end an answer that is cut short as if it were whole
				s.life = context.WithValue(s.life, http.ServerContextKey, ctx.Value(http.ServerContextKey))
			}
			s.life = context.WithValue(s.life, sessionKey{}, s)
			return s.life
		},
	}
	server.Protocols.SetHTTP1(true)
	return server
}

// connState follows a connection's state. All calls but the first come from the connection's own
// goroutine.
func (g *Guard) connState(c net.Conn, state http.ConnState) {
	s := connOf(c).session
	switch state {
	case http.StateNew:
		// The handler's goroutine belongs to the server; this is how Shutdown waits for it.
		if s.read.Load() == nil { // or it is counted already
			g.running.Add(1)
		}
	case http.StateActive: // the head has been read
		if s.multiplexes() {
			return // one of several
		}
		s.unserved.Store(true)
		s.socket.inHead.Store(false)
		g.clients.decided(s.flow)
	case http.StateHijacked:
		s.hijacked = true
	case http.StateClosed:
		s.tellMalformed()
		s.leave()
	}
}

// tellMalformed decides about a request that the server itself refuses. It is called before the
// answer is sent, so that the decision is that of the call whose program gets the answer.
func (s *httpSession) tellMalformed() {
	if s.unserved.Load() && s.unserved.Swap(false) && !s.refused.Load() {
		s.decide("", malformed(reasonBadRequest))
	}
}

// connOf returns the connection below TLS, if there is TLS.
func connOf(c net.Conn) *conn {
	if secure, is := c.(*tls.Conn); is {
		c = secure.NetConn()
	}
	return c.(*conn)
}

// leave ends the connection in good order. It is called once, when the server is done with it.
func (s *httpSession) leave() {
	s.rest()
	if s.transport != nil {
		s.transport.CloseIdleConnections() // so that the client's socket is all that is left
	}
	if read := s.read.Load(); read != nil {
		read.close()
		s.guard.cfg.Budget.Read.Give(s.who.User(), readMemory)
	}
	s.close()
	s.guard.clients.leave(s.flow)
	s.guard.running.Done()
}

func (g *Guard) serveHTTP(to http.ResponseWriter, r *http.Request) {
	s := sessionOf(r.Context())
	if s.multiplexes() { // net/http does not wait for its handlers there
		g.running.Add(1)
		defer g.running.Done()
	}
	s.unserved.Store(false)
	defer func() {
		s.rest()
		if s.read.Load() == nil { // or all are for one name
			s.name.Store(nil)
		}
		s.free(0)
		s.socket.inHead.Store(true)
		if s.hijacked {
			s.leave()
		}
	}()
	name, puts, refused := s.admits(r)
	if refused != nil {
		s.decideOn(r, name, refused)
		refuse(to, name, s.who.Field(), *refused)
		return
	}
	s.forward(to, r, name, puts)
}

// admits returns the name of a request that may be passed on, and what is put into it.
func (s *httpSession) admits(r *http.Request) (name string, puts []put, refused *refusal) {
	read := s.read.Load()
	name, refused = requestName(r, s.port, read != nil, s.multiplexes())
	switch {
	case refused != nil:
		return name, nil, refused
	case read != nil && name != read.name:
		return name, nil, &refusal{verdict: decisions.Denied, reason: reasonOtherHost}
	case !s.asksFor(name):
		return name, nil, &refusal{verdict: decisions.Denied, reason: reasonNotAllowed}
	case read != nil && !s.guard.cfg.Budget.Read.Take(s.who.User(), requestMemory):
		return name, nil, &refusal{verdict: decisions.Limited, reason: reasonRead}
	}
	puts, refused = s.putsFor(r, name)
	if refused != nil {
		s.served()
	}
	return name, puts, refused
}

// served gives back what a request that is read has taken.
func (s *httpSession) served() {
	if s.read.Load() != nil {
		s.guard.cfg.Budget.Read.Give(s.who.User(), requestMemory)
	}
}

// decideOn reports a verdict about a request, which is told of if the connection is read.
func (s *httpSession) decideOn(r *http.Request, name string, refused *refusal) {
	if s.read.Load() == nil {
		s.decide(name, refused)
		return
	}
	s.tell(name, "", requestText(r), refused)
}

// maxMethod is longer than any method's name.
const maxMethod = 32

// isMethod reports whether a method is one, by its form. net/http's HTTP/2 lets all texts pass.
func isMethod(method string) bool {
	return len(method) <= maxMethod && httpguts.ValidHeaderFieldName(method)
}

// requestName finds the one host that a request is for. In absolute form that is the URI's, and the
// Host field is ignored (RFC 9112, 3.2.2): it is not sent on.
func requestName(r *http.Request, port uint16, read, multiplexed bool) (string, *refusal) {
	scheme := "http"
	if read {
		scheme = "https"
	}
	switch {
	case !isMethod(r.Method):
		return "", malformed(reasonBadRequest)
	case strings.EqualFold(r.Method, http.MethodConnect):
		return "", &refusal{verdict: decisions.Denied, reason: reasonConnect}
	case (r.ProtoMajor == 1) == multiplexed || r.URL.User != nil || r.URL.Opaque != "" ||
		r.URL.Scheme != "" && r.URL.Scheme != scheme:
		return "", malformed(reasonBadRequest)
	case r.Host == "":
		return "", &refusal{verdict: decisions.Denied, reason: reasonNoName}
	case isAddress(r.Host):
		return "", &refusal{verdict: decisions.Denied, reason: reasonAddress}
	}
	host, to, _ := strings.Cut(r.Host, ":")
	if strings.HasPrefix(r.Host, "[") {
		end := strings.LastIndexByte(r.Host, ']')
		host, to = r.Host[:end+1], strings.TrimPrefix(r.Host[end+1:], ":")
	}
	name, refused := canonicalName(host)
	if refused != nil {
		return "", refused
	}
	if to != "" && to != strconv.Itoa(int(port)) {
		return name, malformed(reasonBadPort)
	}
	return name, nil
}

var statuses = map[decisions.Verdict]int{
	decisions.Denied: http.StatusForbidden, decisions.Malformed: http.StatusBadRequest,
	decisions.Limited: http.StatusTooManyRequests, decisions.Failed: http.StatusBadGateway,
}

// refuse answers so that a person or an agent knows what to do, and ends the connection. field is
// where a client names what it wants to reach.
func refuse(w http.ResponseWriter, name, field string, r refusal) {
	advice := ""
	switch r.reason {
	case reasonNotAllowed:
		advice = fmt.Sprintf("; to reach it, name %q in %s", name, field)
	case reasonConnect:
		advice = "; connect to port 443 or 80 of the host itself, and name it in " + field
	case reasonPlaceholder:
		advice = "; ask for the credential with its tag, and send it to its own hosts by HTTPS"
	case reasonNoName, reasonAddress:
		advice = "; use the host's name, and name it in " + field
	}
	what := "this request"
	if name != "" {
		what = name
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Connection", "close")
	w.WriteHeader(statuses[r.verdict])
	_, _ = fmt.Fprintf(w, "cannot pass %s on: %s%s\n", what, r.reason, advice)
}
