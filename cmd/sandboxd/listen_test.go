package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/access"
)

const token = "0123456789abcdef0123456789abcdef"

// accessLab has the files that settings name.
type accessLab struct {
	t   *testing.T
	dir string
}

func newAccessLab(t *testing.T) accessLab {
	t.Helper()
	l := accessLab{t, t.TempDir()}
	if err := os.Chmod(l.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l.file("tokens.json", `{"tokens":[{"name":"engine","token":"`+token+`"}]}`)
	return l
}

func (l accessLab) path(name string) string { return filepath.Join(l.dir, name) }

func (l accessLab) file(name, text string) string {
	l.t.Helper()
	if err := os.WriteFile(l.path(name), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return l.path(name)
}

// certificate makes <name>.pem and <name>.key, which is its own authority, and returns the pair.
func (l accessLab) certificate(name string) tls.Certificate {
	l.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.ParseIP(own)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		l.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		l.t.Fatal(err)
	}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	private := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	l.file(name+".pem", cert)
	l.file(name+".key", private)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(private))
	if err != nil {
		l.t.Fatal(err)
	}
	return pair
}

// serve answers, by every way in, everybody who is let in with 204.
func (l accessLab) serve(cfg config.Config) (log string, warnings []string) {
	l.t.Helper()
	tokens, err := readTokens(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.serveTo(cfg, tokens)
}

// serveTo lets in who has one of these tokens.
func (l accessLab) serveTo(cfg config.Config, tokens *access.Tokens) (log string, warnings []string) {
	l.t.Helper()
	var lines bytes.Buffer
	endpoints, err := listenAll(l.t.Context(), cfg, tokens, api.NewConnections(100), func(authenticate api.Authenticator, found []string) http.Handler {
		warnings = found
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if _, err := authenticate(req); err != nil {
				http.Error(w, err.Error(), http.StatusForbidden)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		})
	}, zerolog.New(&lines))
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(l.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- serveAll(ctx, endpoints, func(servers ...*http.Server) (err error) {
			for _, server := range servers {
				err = errors.Join(err, server.Close())
			}
			return err
		})
	}()
	l.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			l.t.Error(err)
		}
	})
	return lines.String(), warnings
}

func (l accessLab) get(web *http.Client, url, token string) (int, error) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := web.Do(req)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body) // so that the connection is kept
	return response.StatusCode, err
}

// own is an address at which nobody else listens or connects, so that a port that was free stays so.
const own = "127.7.48.2"

func (l accessLab) settings() config.Config {
	l.t.Helper()
	free, err := net.Listen("tcp", own+":0")
	if err != nil {
		l.t.Fatal(err)
	}
	defer free.Close()
	cfg := config.Default()
	cfg.Listen = l.path("s")
	cfg.TCP = config.TCP{Listen: free.Addr().String(), TokensFile: l.path("tokens.json")}
	return cfg
}

func webClient(t *testing.T, socket string, trust *tls.Config) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: trust}
	if socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestBothWaysIn(t *testing.T) {
	l := newAccessLab(t)
	cfg := l.settings()
	_, warnings := l.serve(cfg)
	for _, tt := range []struct {
		name, socket, url, token string
		status                   int
	}{
		{"socket", cfg.Listen, "http://x/", "", 204},
		{"token", "", "http://" + cfg.TCP.Listen + "/", token, 204},
		{"no token", "", "http://" + cfg.TCP.Listen + "/", "", 403},
	} {
		if status, err := l.get(webClient(t, tt.socket, nil), tt.url, tt.token); err != nil || status != tt.status {
			t.Errorf("%s: %d, %v", tt.name, status, err)
		}
	}
	if len(warnings) != 0 {
		t.Errorf("warnings of loopback: %q", warnings)
	}
	info, err := os.Stat(cfg.Listen)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
}

func TestSocketsForOthers(t *testing.T) {
	for _, tt := range []struct {
		peers        []int
		file, folder os.FileMode
	}{
		{nil, 0o600, 0o700},
		{[]int{0, os.Getuid() + 1}, 0o666, 0o711},
	} {
		l := newAccessLab(t)
		cfg := l.settings()
		cfg.Listen, cfg.Access.Peers = l.path("run/s"), tt.peers
		l.serve(cfg)
		socket, socketErr := os.Stat(cfg.Listen)
		folder, folderErr := os.Stat(l.path("run"))
		if socketErr != nil || folderErr != nil || socket.Mode().Perm() != tt.file || folder.Mode().Perm() != tt.folder {
			t.Errorf("peers %v: %v in %v", tt.peers, socket, folder)
		}
		want := http.StatusNoContent
		if tt.peers != nil && os.Getuid() != 0 {
			want = http.StatusForbidden
		}
		if status, err := l.get(webClient(t, cfg.Listen, nil), "http://x/", ""); err != nil || status != want {
			t.Errorf("peers %v: %d, %v", tt.peers, status, err)
		}
	}
}

func TestCertificatesOfCallers(t *testing.T) {
	l := newAccessLab(t)
	server, caller, stranger := l.certificate("server"), l.certificate("caller"), l.certificate("stranger")
	cfg := l.settings()
	cfg.TCP.CertFile, cfg.TCP.KeyFile, cfg.TCP.ClientCAFile = l.path("server.pem"), l.path("server.key"), l.path("caller.pem")
	l.serve(cfg)
	roots := x509.NewCertPool()
	roots.AddCert(server.Leaf)
	url := "https://" + cfg.TCP.Listen + "/"
	with := func(pairs ...tls.Certificate) *tls.Config { return &tls.Config{RootCAs: roots, Certificates: pairs} }
	if status, err := l.get(webClient(t, "", with(caller)), url, token); err != nil || status != 204 {
		t.Errorf("certificate and token: %d, %v", status, err)
	}
	if status, err := l.get(webClient(t, "", with(caller)), url, ""); err != nil || status != 403 {
		t.Errorf("certificate without a token: %d, %v", status, err)
	}
	old := with(caller)
	old.MaxVersion = tls.VersionTLS11
	for name, trust := range map[string]*tls.Config{"no certificate": with(), "another's": with(stranger), "an old version": old} {
		if status, err := l.get(webClient(t, "", trust), url, token); err == nil {
			t.Errorf("%s: %d", name, status)
		}
	}
}

func TestTokensInClearAreWarnedOf(t *testing.T) {
	l := newAccessLab(t)
	cfg := l.settings()
	_, port, _ := net.SplitHostPort(cfg.TCP.Listen)
	cfg.TCP.Listen = ":" + port
	log, warnings := l.serve(cfg)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "set tcp.certFile and tcp.keyFile") || !strings.Contains(log, "go over the network in clear") {
		t.Errorf("warnings %q, log %s", warnings, log)
	}
}

// What is wrong is found before anything listens, and nothing is left listening.
func TestListenersThatCannotBeOpened(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(accessLab, *config.Config)
		want   string
	}{
		{"no certificate", func(l accessLab, c *config.Config) {
			c.TCP.CertFile, c.TCP.KeyFile = l.path("tokens.json"), l.path("tokens.json")
		}, "cannot use tcp.certFile and tcp.keyFile"},
		{"no authority", func(l accessLab, c *config.Config) {
			l.certificate("server")
			c.TCP.CertFile, c.TCP.KeyFile, c.TCP.ClientCAFile = l.path("server.pem"), l.path("server.key"), l.path("tokens.json")
		}, "tcp.clientCaFile: failed to append certificates from PEM file"},
		{"folder where others write", func(l accessLab, c *config.Config) {
			if err := os.Mkdir(l.path("open"), 0o700); err != nil {
				l.t.Fatal(err)
			}
			if err := os.Chmod(l.path("open"), 0o770); err != nil {
				l.t.Fatal(err)
			}
			c.Listen = l.path("open/s")
		}, "others may write to the socket's folder"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newAccessLab(t)
			cfg := l.settings()
			tt.change(l, &cfg)
			_, err := listenAll(t.Context(), cfg, nil, api.NewConnections(100), func(api.Authenticator, []string) http.Handler { return http.NotFoundHandler() }, zerolog.Nop())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("%v, want %s", err, tt.want)
			}
			free, err := net.Listen("tcp", cfg.TCP.Listen)
			if err != nil {
				t.Fatalf("it still listens: %v", err)
			}
			_ = free.Close()
		})
	}
}

// What anybody may cause is no alarm; a handler that panicked is one.
func TestServerLog(t *testing.T) {
	var lines strings.Builder
	server := newServer(http.NotFoundHandler(), zerolog.New(&lines))
	server.ErrorLog.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
	server.ErrorLog.Print("http: panic serving @: nil map\ngoroutine 1")
	want := `{"level":"debug","from":"api","line":"http: TLS handshake error from 192.0.2.1:1: EOF","message":"net/http says"}` + "\n" +
		`{"level":"error","from":"api","line":"http: panic serving @: nil map\ngoroutine 1","message":"net/http says"}` + "\n"
	if lines.String() != want {
		t.Errorf("%s", lines.String())
	}
}

// A client that keeps a connection knows for how long: a little less than the server does.
func TestServerTellsHowLongAConnectionIsKept(t *testing.T) {
	server := newServer(http.NotFoundHandler(), zerolog.Nop())
	for proto, want := range map[int]string{1: "timeout=115", 2: ""} {
		answer, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		req.ProtoMajor = proto
		server.Handler.ServeHTTP(answer, req)
		if got := answer.Header().Get("Keep-Alive"); got != want {
			t.Errorf("HTTP/%d: Keep-Alive is %q, want %q", proto, got, want)
		}
	}
	if server.IdleTimeout != 2*time.Minute {
		t.Errorf("connections are kept for %s, which callers are not told", server.IdleTimeout)
	}
}
