package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/httplog"
	"github.com/daycare-run/sandbox/internal/version"
)

// endpoint is a listener with its server.
type endpoint struct {
	listener net.Listener
	server   *http.Server
}

// answer serves HTTP on the socket and, as configured, on TCP, to other hosts and to E2B's clients.
// When ctx ends, it stops them as stop describes.
func (d *daemon) answer(ctx context.Context, cfg config.Config) error {
	running, metrics := &callCounter{}, d.metrics.Handler(d)
	foreign, sent, err := d.openE2B(ctx, cfg, running)
	if err != nil {
		return err
	}
	var entry api.Router
	var nodes api.Nodes
	handler := func(authenticate api.Authenticator, warnings []string,
		router api.Router) http.Handler {
		return running.counting(api.New(d.service, api.Config{
			Authenticator: authenticate, Tokens: d.tokens, Router: router, Nodes: nodes,
			Credentials: d.credentials, Warnings: warnings, Version: version.String(),
			MaxRequest: cfg.Exec.MaxRequestBytes, MaxOutput: cfg.Exec.MaxOutputBytes,
			Stopping: ctx.Done(), Metrics: metrics, Doctor: doctorOf(d), Log: d.log,
			LogCalls: func() bool { return d.cfg.Load().Log.Access },
		}))
	}
	if d.member != nil {
		entry, nodes = forward.Entry{Router: d.member.Router()}, d.member
		calls := handler(forward.Caller, nil, forward.Inbound{Router: d.member.Router()})
		hosts, err := d.openNodes(cfg, calls, sent)
		if err != nil {
			return err
		}
		foreign = append(foreign, hosts)
	}
	endpoints, err := listenAll(ctx, cfg, d.tokens, d.connections,
		func(authenticate api.Authenticator, warnings []string) http.Handler {
			return handler(authenticate, warnings, entry)
		}, d.log)
	if err != nil {
		for _, e := range foreign {
			err = errors.Join(err, e.listener.Close())
		}
		return err
	}
	endpoints = append(endpoints, foreign...)
	if d.member != nil {
		d.member.SetServing()
	}
	d.log.Info().Str("socket", cfg.Listen).Str("tcp", cfg.TCP.Listen).Str("e2b", cfg.E2B.Listen).
		Str("runtime", cfg.Docker.Runtime).Str("version", version.String()).Msg("listening")
	tellReady(d.log)
	return serveAll(ctx, endpoints, func(servers ...*http.Server) error {
		return d.stop(ctx, running, servers...)
	})
}

// serveAll serves until ctx ends, and then calls stop. It also returns if a server can no longer
// accept connections.
func serveAll(ctx context.Context, endpoints []endpoint, stop func(...*http.Server) error) error {
	failed := make(chan error, len(endpoints))
	servers := make([]*http.Server, len(endpoints))
	for i, e := range endpoints {
		servers[i] = e.server
		go func() { failed <- e.server.Serve(e.listener) }()
	}
	select {
	case err := <-failed:
		for _, server := range servers {
			_ = server.Close()
		}
		return fmt.Errorf("cannot go on listening: %w", err)
	case <-ctx.Done():
	}
	return stop(servers...)
}

// listenAll opens the socket and the TCP listener, which share the connections. If one cannot be
// opened, none is.
func listenAll(ctx context.Context, cfg config.Config,
	tokens *access.Tokens, shared *api.Connections,
	handler func(api.Authenticator, []string) http.Handler, log zerolog.Logger) ([]endpoint,
	error) {
	tcp, warnings, err := listenTCP("tcp.listen", cfg.TCP.Listen, cfg.TCP, log)
	if err != nil {
		return nil, err
	}
	peers := cfg.Access.PeerUIDs(os.Getuid())
	socket, err := access.ListenUnix(ctx, cfg.Listen, access.SocketMode(peers, os.Getuid()), log)
	if err != nil {
		if tcp != nil {
			err = errors.Join(err, tcp.Close())
		}
		return nil, err
	}
	local := access.Unix{Peers: peers}
	unix := newServer(handler(local.Caller, warnings), log)
	unix.ConnContext = access.ConnContext
	endpoints := []endpoint{{api.Prepare(unix, socket, shared, local.Peer), unix}}
	if tcp != nil {
		callers := tcpCallers(cfg.TCP, cfg.TCP.Listen, tokens)
		served := handler(callers.Caller, warnings)
		if cfg.TCP.Console {
			if served, err = openConsole(cfg.DataDir, callers, served); err != nil {
				return nil, errors.Join(err, tcp.Close(), socket.Close())
			}
		}
		server := newServer(served, log)
		endpoints = append(endpoints, endpoint{api.Prepare(server, tcp, shared, nil), server})
	}
	return endpoints, nil
}

// maxHeader is the limit of a request's headers in bytes.
const maxHeader = 64 << 10

// kept is how long a connection may be without a request. Callers are told keptTold, so that none
// sends a request in the moment in which its connection is closed.
const (
	kept     = 2 * time.Minute
	keptTold = kept - 5*time.Second
)

func newServer(handler http.Handler, log zerolog.Logger) *http.Server {
	return &http.Server{
		Handler:           tellingIdle(handler),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       kept,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          httplog.New(log, "api"),
	}
}

// tellingIdle adds to the answers of HTTP/1 how long their connection may be idle. HTTP/2 forbids
// that header.
func tellingIdle(handler http.Handler) http.Handler {
	told := fmt.Sprintf("timeout=%d", int(keptTold.Seconds()))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor == 1 {
			w.Header().Set("Keep-Alive", told)
		}
		handler.ServeHTTP(w, req)
	})
}

// tcpCallers authenticates callers at the address of a setting by their tokens.
func tcpCallers(cfg config.TCP, address string, tokens *access.Tokens) access.TCP {
	return access.TCP{Tokens: tokens, Listen: address, Hosts: cfg.AllowedHosts,
		Origins: cfg.AllowedOrigins}
}

// listenTCP listens at the address of a setting, with TLS if configured. It returns nil if the
// address is empty. The warnings are for the operator and have been logged.
func listenTCP(key, address string, cfg config.TCP,
	log zerolog.Logger) (_ net.Listener, warnings []string, _ error) {
	if address == "" {
		return nil, nil, nil
	}
	encryption, err := access.Encryption(cfg.CertFile, cfg.KeyFile, cfg.ClientCAFile)
	if err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot listen on %s: %w", key, err)
	}
	if encryption != nil {
		listener = tls.NewListener(listener, encryption)
	} else if access.Exposed(address) {
		warnings = append(warnings,
			fmt.Sprintf(
				"tokens and everything in calls go over the network in clear: set tcp.certFile and tcp.keyFile, or %s to a loopback address instead of %s",
				key, address))
		log.Warn().Msg(warnings[0])
	}
	return listener, warnings, nil
}

// readTokens reads the configured tokens. It returns nil if nothing listens where tokens are used.
func readTokens(cfg config.Config) (*access.Tokens, error) {
	if cfg.TCP.Listen == "" && cfg.E2B.Listen == "" {
		return nil, nil
	}
	return access.ReadTokens(cfg.TCP.TokensFile)
}
