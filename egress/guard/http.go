package guard

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// web is the HTTP side of a flow.
type web struct {
	transport *http.Transport
	// life ends with the flow, or with the connection.
	life context.Context
	// heads counts what the server has read the beginning of, and requests what was a request:
	// the rest was malformed, which the server tells nobody else.
	heads, requests int
	hijacked        bool
}

type flowKey struct{}

func flowOf(ctx context.Context) *flow { return ctx.Value(flowKey{}).(*flow) }

func (g *Guard) newServer() *http.Server {
	most := g.cfg.Limits
	server := &http.Server{
		Handler:                      http.HandlerFunc(g.serveHTTP),
		DisableGeneralOptionsHandler: true,
		MaxHeaderBytes:               most.HelloBytes,
		ReadHeaderTimeout:            most.HelloTimeout,
		IdleTimeout:                  most.HTTPIdle,
		ErrorLog:                     log.New(g.cfg.Logger, "", 0),
		Protocols:                    new(http.Protocols),
		ConnState:                    g.connState,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			f := c.(*conn).flow
			f.web = &web{transport: f.newTransport(), life: context.WithValue(f.context(ctx), flowKey{}, f)}
			return f.web.life
		},
	}
	server.Protocols.SetHTTP1(true)
	return server
}

// connState follows a connection. All calls for it but the first come from its own goroutine.
func (g *Guard) connState(c net.Conn, state http.ConnState) {
	f := c.(*conn).flow
	switch state {
	case http.StateNew:
		// The handler's goroutine is the server's; this is how it is waited for.
		g.running.Add(1)
	case http.StateActive:
		f.web.heads++
		g.clients.decided(f)
	case http.StateHijacked:
		f.web.hijacked = true
	case http.StateClosed:
		if f.web.heads > f.web.requests {
			f.decide("", refusal{verdict: Malformed, reason: reasonBadRequest})
		}
		f.leaveHTTP()
	}
}

func (f *flow) leaveHTTP() {
	f.leave()
	f.web.transport.CloseIdleConnections()
	f.guard.running.Done()
}

func (g *Guard) serveHTTP(w http.ResponseWriter, r *http.Request) {
	f := flowOf(r.Context())
	f.web.requests++
	defer func() {
		if f.web.hijacked {
			f.leaveHTTP()
		}
	}()
	name, refused := requestName(r, f.port)
	if refused == nil && !f.client.Allows(name) {
		refused = &refusal{verdict: Denied, reason: reasonNotAllowed}
	}
	if refused != nil {
		f.decide(name, *refused)
		status := http.StatusForbidden
		if refused.verdict == Malformed {
			status = http.StatusBadRequest
		}
		refuse(w, status, name, *refused)
		return
	}
	f.forward(w, r, name)
}

// requestName finds the one host that a request is for. In absolute form that is the URI's, and the
// Host field counts for nothing (RFC 9112, 3.2.2): it is not sent on.
func requestName(r *http.Request, port uint16) (string, *refusal) {
	switch {
	case r.Method == http.MethodConnect:
		return "", &refusal{verdict: Denied, reason: reasonConnect}
	case r.ProtoMajor != 1 || r.URL.User != nil || r.URL.Opaque != "" || r.URL.Scheme != "" && r.URL.Scheme != "http":
		return "", malformed(reasonBadRequest)
	case r.Host == "":
		return "", &refusal{verdict: Denied, reason: reasonNoName}
	case isAddress(r.Host):
		return "", &refusal{verdict: Denied, reason: reasonAddress}
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

// refuse answers so that a person or an agent knows what to do, and ends the connection.
func refuse(w http.ResponseWriter, status int, name string, r refusal) {
	advice := ""
	switch r.reason {
	case reasonNotAllowed:
		advice = fmt.Sprintf("; to reach it, ask for %q in the call's allowedDomains", name)
	case reasonConnect:
		advice = "; connect to port 443 or 80 of the host itself, and ask for its name in the call's allowedDomains"
	case reasonNoName, reasonAddress:
		advice = "; use the host's name, and ask for it in the call's allowedDomains"
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
