package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

const token = "0123456789abcdef0123456789abcdef"

// serveTCP serves a lab to whoever has the token.
func serveTCP(t *testing.T, l *lab, encrypted bool) *httptest.Server {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(name, []byte(`{"tokens":[{"name":"engine","token":"`+token+`"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := access.ReadTokens(name)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(api.New(l.Service, api.Config{
		Authenticator: access.TCP{Tokens: tokens, Listen: "127.0.0.1:1"}.Caller,
		Version:       "v1.2.3", MaxRequest: 4 << 20, MaxOutput: 1 << 20, Log: zerolog.Nop(),
	}))
	if encrypted {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

// trusts is a configuration that trusts a test server.
func trusts(server *httptest.Server) *tls.Config {
	roots := x509.NewCertPool()
	if certificate := server.Certificate(); certificate != nil {
		roots.AddCert(certificate)
	}
	return &tls.Config{RootCAs: roots}
}

func open(t *testing.T, cfg client.Config) *client.Client {
	t.Helper()
	c, err := client.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Every kind of call finds its way over TCP: plain, streamed, over a WebSocket, and with a connection of its own.
func TestCallsOverTCP(t *testing.T) {
	for name, encrypted := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			content := strings.Repeat("content ", 100_000)
			l := newLab(t, sandboxtest.Started(func(_ context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
				return warm.Result{}, out(session.Stdout, []byte("out"))
			}))
			server := serveTCP(t, l, encrypted)
			c := open(t, client.Config{URL: server.URL + "/", Token: token, TLS: trusts(server)})
			if got, err := c.Get(t.Context(), "agent-7"); err != nil || got.ID != "agent-7" {
				t.Errorf("get: %+v, %v", got, err)
			}
			var out strings.Builder
			if _, err := c.Attach(t.Context(), "agent-7", types.Exec{Command: "x"}, client.Streams{Stdout: &out}); err != nil || out.String() != "out" {
				t.Errorf("attach: %q, %v", out.String(), err)
			}
			if written, err := c.Upload(t.Context(), "agent-7", "/home/x", strings.NewReader(content), false); err != nil || written.Bytes != int64(len(content)) {
				t.Errorf("upload: %+v, %v", written, err)
			}
			download, err := c.Download(t.Context(), "agent-7", "x", 8)
			if err != nil {
				t.Fatal(err)
			}
			defer download.Close()
			if got, err := io.ReadAll(download); err != nil || string(got) != content[8:] {
				t.Errorf("download: %d bytes, %v", len(got), err)
			}
		})
	}
}

func TestStrangers(t *testing.T) {
	server := serveTCP(t, newLab(t, nil), true)
	wrong := open(t, client.Config{URL: server.URL, Token: "x" + token, TLS: trusts(server)})
	_, getErr := wrong.Get(t.Context(), "agent-7")
	_, attachErr := wrong.Attach(t.Context(), "agent-7", types.Exec{Command: "x"}, client.Streams{})
	_, downloadErr := wrong.Download(t.Context(), "agent-7", "x", 0)
	for _, err := range []error{getErr, attachErr, downloadErr} {
		var refusal *client.Error
		if !errors.As(err, &refusal) || refusal.Kind != types.Denied || refusal.Message != "the token is not known" || refusal.RequestID == "" {
			t.Errorf("%#v", err)
		}
	}
	distrustful := open(t, client.Config{URL: server.URL, Token: token})
	if _, err := distrustful.Get(t.Context(), "agent-7"); err == nil || !strings.Contains(err.Error(), "the service at "+server.URL+" is not trusted") {
		t.Error(err)
	}
	plain := open(t, client.Config{URL: strings.Replace(server.URL, "https", "http", 1), Token: token})
	if _, err := plain.Get(t.Context(), "agent-7"); err == nil {
		t.Error("an answer in clear from a service with TLS")
	}
}

// A service never sends a caller elsewhere, least of all with its token.
func TestRedirectsAreNotFollowed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/elsewhere" {
			t.Error("the redirect was followed")
		}
		http.Redirect(w, req, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	if _, err := open(t, client.Config{URL: server.URL, Token: token}).Get(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "307") {
		t.Error(err)
	}
}

func TestOpenRefusesBadConfigs(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  client.Config
		want string
	}{
		{"nothing", client.Config{}, "one of Socket and URL"},
		{"both", client.Config{Socket: "/s", URL: "http://x:1", Token: token}, "one of Socket and URL"},
		{"no token", client.Config{URL: "https://x:1"}, "needs a token"},
		{"no scheme", client.Config{URL: "localhost:7480", Token: token}, "want a URL such as"},
		{"another scheme", client.Config{URL: "ftp://x:1", Token: token}, "want a URL such as"},
		{"no port", client.Config{URL: "https://x", Token: token}, "want a URL such as"},
		{"path", client.Config{URL: "https://x:1/v1", Token: token}, "want a URL such as"},
		{"query", client.Config{URL: "https://x:1?a", Token: token}, "want a URL such as"},
		{"token in the URL", client.Config{URL: "https://me:" + token + "@x:1", Token: token}, "want a URL such as"},
	} {
		if _, err := client.Open(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
}

func TestTransportsMayBeWrapped(t *testing.T) {
	server := serveTCP(t, newLab(t, nil), false)
	var seen []string
	c := open(t, client.Config{URL: server.URL, Token: token, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(req *http.Request) (*http.Response, error) {
			seen = append(seen, req.Method+" "+req.URL.Path+req.Header.Get("Authorization"))
			return next.RoundTrip(req)
		})
	}})
	if _, err := c.Get(t.Context(), "agent-7"); err != nil || len(seen) != 1 || seen[0] != "GET /v1/sandboxes/agent-7" {
		t.Errorf("%q, %v", seen, err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }
