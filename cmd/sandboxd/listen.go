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

// answer serves HTTP on the socket, and on TCP and for clients of E2B if the settings say so, until ctx ends, and then
// as stop says. handler makes the handler of requests that an authenticator admits; the warnings are for health.
func answer(ctx context.Context, cfg config.Config, handler func(api.Authenticator, []string, api.Router) http.Handler, l *daemon, log zerolog.Logger) error {
	running := &callCounter{}
	foreign, sent, err := l.openE2B(ctx, cfg, running)
	if err != nil {
		return err
	}
	counting := func(authenticate api.Authenticator, warnings []string, router api.Router) http.Handler {
		return running.counting(handler(authenticate, warnings, router))
	}
	var entry api.Router
	if l.member != nil {
		entry = forward.Entry{Router: l.member.router}
		nodes, err := l.member.openNodes(cfg, counting, sent)
		if err != nil {
			return err
		}
		foreign = append(foreign, nodes)
	}
	endpoints, err := listenAll(ctx, cfg, l.tokens, l.connections, func(authenticate api.Authenticator, warnings []string) http.Handler {
		return counting(authenticate, warnings, entry)
	}, log)
	if err != nil {
		for _, e := range foreign {
			err = errors.Join(err, e.listener.Close())
		}
		return err
	}
	endpoints = append(endpoints, foreign...)
	log.Info().Str("socket", cfg.Listen).Str("tcp", cfg.TCP.Listen).Str("e2b", cfg.E2B.Listen).Str("runtime", cfg.Docker.Runtime).Str("version", version.String()).Msg("listening")
	tellReady(log)
	return serveAll(ctx, endpoints, func(servers ...*http.Server) error { return l.stop(ctx, running, servers...) })
}

// serveAll serves until ctx ends, and then stops; or until one of them cannot go on listening.
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

// listenAll listens; both share the connections. Where one cannot be opened, none is.
func listenAll(ctx context.Context, cfg config.Config, tokens *access.Tokens, shared *api.Connections, handler func(api.Authenticator, []string) http.Handler, log zerolog.Logger) ([]endpoint, error) {
	tcp, warnings, err := openTCP(cfg.TCP, tokens)
	if err != nil {
		return nil, err
	}
	for _, warning := range warnings {
		log.Warn().Msg(warning)
	}
	peers := cfg.Access.PeerUIDs(os.Getuid())
	socket, err := listen(ctx, cfg.Listen, modeFor(peers), log)
	if err != nil {
		if tcp != nil {
			err = errors.Join(err, tcp.Close())
		}
		return nil, err
	}
	local := access.Unix{Peers: peers}
	unix := newServer(handler(local.Caller, warnings), log)
	unix.ConnContext = access.ConnContext
	endpoints := []endpoint{{api.Prepare(unix, socket, shared, func(c net.Conn) (who api.Peer) {
		who.Name, who.Operator = local.Peer(c)
		return who
	}), unix}}
	if tcp != nil {
		served := handler(tcp.authenticate, warnings)
		if cfg.TCP.Console {
			if served, err = openConsole(cfg.DataDir, tcp, served); err != nil {
				return nil, errors.Join(err, tcp.Close(), socket.Close())
			}
		}
		server := newServer(served, log)
		endpoints = append(endpoints, endpoint{api.Prepare(server, tcp.Listener, shared, nil), server})
	}
	return endpoints, nil
}

// maxHeader is what the headers of a call may have in bytes.
const maxHeader = 64 << 10

func newServer(handler http.Handler, log zerolog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          httplog.New(log, "api"),
	}
}

// tcpListener listens on TCP. Its requests are authenticated by token.
type tcpListener struct {
	net.Listener
	authenticate api.Authenticator
	admit        func(*http.Request) error
	// signIn is for the console: a session is as good as the token that it was begun with, and no better.
	signIn func(token string) (authorization string, ok bool)
}

// openTCP listens as the settings say; nil if they do not. The warnings are for the operator.
func openTCP(cfg config.TCP, tokens *access.Tokens) (_ *tcpListener, warnings []string, _ error) {
	if cfg.Listen == "" {
		return nil, nil, nil
	}
	listener, warnings, err := listenTCP("tcp.listen", cfg.Listen, cfg)
	if err != nil {
		return nil, nil, err
	}
	tcp := access.TCP{Tokens: tokens, Listen: cfg.Listen, Hosts: cfg.AllowedHosts, Origins: cfg.AllowedOrigins}
	signIn := func(token string) (string, bool) {
		_, known := tokens.Find(token)
		return "Bearer " + token, known
	}
	return &tcpListener{listener, tcp.Caller, tcp.Admit, signIn}, warnings, nil
}

// listenTCP listens at the address that a setting names, with TLS if the settings say so.
func listenTCP(key, address string, cfg config.TCP) (_ net.Listener, warnings []string, _ error) {
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
		warnings = append(warnings, fmt.Sprintf("tokens and all that calls carry go over the network in clear: set tcp.certFile and tcp.keyFile, or %s to a loopback address instead of %s", key, address))
	}
	return listener, warnings, nil
}

// readTokens reads the tokens that the settings name; nil if no caller has one.
func readTokens(cfg config.Config) (*access.Tokens, error) {
	if cfg.TCP.Listen == "" && cfg.E2B.Listen == "" {
		return nil, nil
	}
	return access.ReadTokens(cfg.TCP.TokensFile)
}

// modeFor is the mode of the socket. Where others than its owner and root are to call, everybody may connect,
// and the authenticator checks who it is.
func modeFor(peers []uint32) fs.FileMode {
	for _, uid := range peers {
		if uid != 0 && int(uid) != os.Getuid() {
			return 0o666
		}
	}
	return 0o600
}

// listen makes the socket. One that nobody listens on is a leftover; one that answers is another
// service's. A folder is made so that who may connect can get there.
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
		log.Warn().Msgf("users whom access.peers names cannot get to the socket: its folder %s has the mode %04o: chmod 711 %s, or in the unit RuntimeDirectoryMode=0711", folder, info.Mode().Perm(), folder)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if conn, err := dialer.DialContext(ctx, "unix", socket); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("cannot listen on %s: another service answers there; stop it, or set listen to another path", socket)
	}
	if info, err := os.Lstat(socket); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("cannot listen on %s: there is something that is no socket", socket)
		}
		if err := os.Remove(socket); err != nil {
			return nil, fmt.Errorf("cannot replace the old socket: %w", err)
		}
	}
	// Bound under a name of its own, and renamed only when its mode is right: nobody can connect
	// in between.
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
