package guard

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

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
			s := c.(*conn).session
			s.socket = c.(*conn).socket
			s.transport, s.life = s.newTransport(),
				context.WithValue(s.context(ctx), sessionKey{}, s)
			return s.life
		},
	}
	server.Protocols.SetHTTP1(true)
	return server
}

// connState follows a connection's state. All calls but the first come from the connection's own
// goroutine.
func (g *Guard) connState(c net.Conn, state http.ConnState) {
	s := c.(*conn).session
	switch state {
	case http.StateNew:
		// The handler's goroutine belongs to the server; this is how Shutdown waits for it.
		g.running.Add(1)
	case http.StateActive: // the head has been read
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

// leave ends the connection in good order. It is called once, when the server is done with it.
func (s *httpSession) leave() {
	s.rest()
	s.transport.CloseIdleConnections() // so that the client's socket is all that is left
	s.close()
	s.guard.clients.leave(s.flow)
	s.guard.running.Done()
}

func (g *Guard) serveHTTP(to http.ResponseWriter, r *http.Request) {
	s := sessionOf(r.Context())
	s.unserved.Store(false)
	defer func() {
		s.rest()
		s.name.Store(nil)
		s.free(0)
		s.socket.inHead.Store(true)
		if s.hijacked {
			s.leave()
		}
	}()
	name, refused := requestName(r, s.port)
	if refused == nil && !s.asksFor(name) {
		refused = &refusal{verdict: decisions.Denied, reason: reasonNotAllowed}
	}
	if refused != nil {
		s.decide(name, refused)
		status := http.StatusForbidden
		if refused.verdict == decisions.Malformed {
			status = http.StatusBadRequest
		}
		refuse(to, status, name, s.who.Field(), *refused)
		return
	}
	s.forward(to, r, name)
}

// requestName finds the one host that a request is for. In absolute form that is the URI's, and the
// Host field is ignored (RFC 9112, 3.2.2): it is not sent on.
func requestName(r *http.Request, port uint16) (string, *refusal) {
	switch {
	case r.Method == http.MethodConnect:
		return "", &refusal{verdict: decisions.Denied, reason: reasonConnect}
	case r.ProtoMajor != 1 || r.URL.User != nil || r.URL.Opaque != "" ||
		r.URL.Scheme != "" && r.URL.Scheme != "http":
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

// refuse answers so that a person or an agent knows what to do, and ends the connection. field is
// where a client names what it wants to reach.
func refuse(w http.ResponseWriter, status int, name, field string, r refusal) {
	advice := ""
	switch r.reason {
	case reasonNotAllowed:
		advice = fmt.Sprintf("; to reach it, name %q in %s", name, field)
	case reasonConnect:
		advice = "; connect to port 443 or 80 of the host itself, and name it in " + field
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
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "cannot pass %s on: %s%s\n", what, r.reason, advice)
}
