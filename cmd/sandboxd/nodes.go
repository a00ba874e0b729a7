package main

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
)

// nodes answers what the other hosts of a cluster ask.
type nodes struct {
	calls    http.Handler             // the API, for calls that they send
	e2b      http.Handler             // for requests of E2B's clients that they send
	settings func() map[string]string // a function, because a reload changes them
	usersDir string
}

// ServeHTTP implements http.Handler.
func (n nodes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if forward.ServeHosts(w, req, n.usersDir, n.settings) {
		return
	}
	if req, wire := forward.Received(req); wire == forward.E2B {
		n.e2b.ServeHTTP(w, req)
		return
	}
	n.calls.ServeHTTP(w, req)
}

// openNodes listens for requests from the other hosts.
func (d *daemon) openNodes(cfg config.Config, calls, e2b http.Handler) (endpoint, error) {
	settings := func() map[string]string { return d.membership.Settings(*d.cfg.Load()) }
	return listenNodes(cfg.Cluster.Listen, d.membership.Certificates(),
		nodes{calls, e2b, settings, cfg.UsersDir}, d.log)
}

func listenNodes(address string, certs forward.Certificates, handler nodes,
	log zerolog.Logger) (endpoint, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return endpoint{}, fmt.Errorf("cannot listen on cluster.listen: %w", err)
	}
	server := newServer(handler, log)
	// Besides the caller's own headers they carry, in base64, the caller on whose behalf they act.
	server.MaxHeaderBytes = 2*maxHeader + base64.StdEncoding.EncodedLen(access.MaxTokensFile)
	return endpoint{certs.Listen(listener), server}, nil
}
