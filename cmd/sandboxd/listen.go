package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
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

// answer serves HTTP on the socket and, as configured, on TCP, to other hosts and to E2B's clients. When ctx ends, it
// stops them as stop describes.
func (d *daemon) answer(ctx context.Context, cfg config.Config) error {
	running, metrics := &callCounter{}, d.metrics.Handler(d)
	foreign, sent, err := d.openE2B(ctx, cfg, running)
	if err != nil {
		return err
	}
	var entry api.Router
	var nodes api.Nodes
	handler := func(authenticate api.Authenticator, warnings []string, router api.Router) http.Handler {
		return running.counting(api.New(d.service, api.Config{
			Authenticator: authenticate, Hold: d.tokens.Hold, Router: router, Nodes: nodes, Warnings: warnings,
			Version: version.String(), MaxRequest: cfg.Exec.MaxRequestBytes, MaxOutput: cfg.Exec.MaxOutputBytes,
			Stopping: ctx.Done(), Metrics: metrics, Doctor: doctorOf(d), RemoveUser: d.lasting.RemoveUser,
			Log: d.log, LogCalls: func() bool { return d.cfg.Load().Log.Access },
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
	endpoints, err := listenAll(ctx, cfg, d.tokens, d.connections, func(authenticate api.Authenticator, warnings []string) http.Handler {
		return handler(authenticate, warnings, entry)
	}, d.log)
	if err != nil {
		for _, e := range foreign {
			err = errors.Join(err, e.listener.Close())
		}
		return err
	}
	endpoints = append(endpoints, foreign...)
	d.log.Info().Str("socket", cfg.Listen).Str("tcp", cfg.TCP.Listen).Str("e2b", cfg.E2B.Listen).Str("runtime", cfg.Docker.Runtime).Str("version", version.String()).Msg("listening")
	tellReady(d.log)
	return serveAll(ctx, endpoints, func(servers ...*http.Server) error { return d.stop(ctx, running, servers...) })
}

// serveAll serves until ctx ends, and then calls stop. It also returns if a server can no longer accept connections.
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

// listenAll opens the socket and the TCP listener, which share the connections. If one cannot be opened, none is.
func listenAll(ctx context.Context, cfg config.Config, tokens *access.Tokens, shared *api.Connections, handler func(api.Authenticator, []string) http.Handler, log zerolog.Logger) ([]endpoint, error) {
	tcp, warnings, err := listenTCP("tcp.listen", cfg.TCP.Listen, cfg.TCP, log)
	if err != nil {
		return nil, err
	}
	peers := cfg.Access.PeerUIDs(os.Getuid())
	socket, err := listen(ctx, cfg.Listen, modeFor(peers, os.Getuid()), log)
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

// kept is how long a connection may be without a request. Callers are told keptTold, so that none sends a request in
// the moment in which its connection is closed.
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

// tellingIdle adds to the answers of HTTP/1 how long their connection may be idle. HTTP/2 forbids that header.
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
	return access.TCP{Tokens: tokens, Listen: address, Hosts: cfg.AllowedHosts, Origins: cfg.AllowedOrigins}
}

// listenTCP listens at the address of a setting, with TLS if configured. It returns nil if the address is empty. The
// warnings are for the operator and have been logged.
func listenTCP(key, address string, cfg config.TCP, log zerolog.Logger) (_ net.Listener, warnings []string, _ error) {
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
		warnings = append(warnings, fmt.Sprintf("tokens and everything in calls go over the network in clear: set tcp.certFile and tcp.keyFile, or %s to a loopback address instead of %s", key, address))
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

// modeFor returns the mode of the socket of a service that runs as uid. If callers other than that and root are allowed,
// everybody may connect and the authenticator checks who they are.
func modeFor(peers []uint32, uid int) fs.FileMode {
	for _, peer := range peers {
		if peer != 0 && int(peer) != uid {
			return 0o666
		}
	}
	return 0o600
}

// listen makes the socket. A socket that nobody listens on is a leftover and is replaced; one that answers belongs to
// another service. The folder is made so that allowed callers can reach the socket.
func listen(ctx context.Context, socket string, mode fs.FileMode, log zerolog.Logger) (net.Listener, error) {
	folder, way := filepath.Dir(socket), fs.FileMode(0o700)
	if mode != 0o600 {
		way = 0o711
	}
	if err := os.MkdirAll(folder, way); err != nil {
		return nil, fmt.Errorf("cannot make the socket's folder: %w", err)
	}
	if open, err := access.CheckFolder(folder); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", socket, err)
	} else if open != "" && mode == 0o600 {
		log.Warn().Msg(open)
	} else if info, err := os.Stat(folder); err == nil && mode != 0o600 && info.Mode()&0o001 == 0 {
		log.Warn().Msgf("users whom access.peers names cannot reach the socket, because its folder %s has the mode %04o: chmod 711 %s, or set RuntimeDirectoryMode=0711 in the unit", folder, info.Mode().Perm(), folder)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", socket); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("cannot listen on %s: another service answers there; stop it, or set listen to another path", socket)
	}
	if info, err := os.Lstat(socket); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("cannot listen on %s: there is something there that is not a socket", socket)
		}
		if err := os.Remove(socket); err != nil {
			return nil, fmt.Errorf("cannot replace the old socket: %w", err)
		}
	}
	// The socket is bound under a temporary name and renamed once its mode is right, so nobody can connect in between.
	temporary := fmt.Sprintf("%s.%d", socket, os.Getpid())
	listener, err := net.Listen("unix", temporary)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", socket, err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(temporary, mode), os.Rename(temporary, socket)); err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(temporary))
	}
	return listener, nil
}
