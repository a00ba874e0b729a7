package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/lasting"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

type paused struct{}

func (paused) Error() string { return "it is paused" }
func (paused) Unwrap() error { return cerrdefs.ErrFailedPrecondition }

const (
	annesKey = "0123456789abcdef0123456789abcdef"
	bensKey  = "fedcba9876543210fedcba9876543210"
)

// lab is the surface over a memory.
type lab struct {
	t       *testing.T
	url     string
	surface http.Handler
	memory  *memory
	tokens  *access.Tokens
}

const (
	annesToken = `{"name":"anne","token":"` + annesKey + `"}`
	bensToken  = `{"name":"ben","token":"` + bensKey + `","users":["ben"]}`
)

// readTokens are those of a file with these entries.
// Abandon implements Sandboxes: there is one host.
func (m *memory) Abandon(string) {}

func readTokens(t *testing.T, entries string) *access.Tokens {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(`{"tokens":[`+entries+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := access.ReadTokens(file)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func newLab(t *testing.T, change ...func(*Config)) *lab {
	t.Helper()
	l := &lab{t: t, memory: &memory{lab: sandboxtest.NewLab(t, nil)}, tokens: readTokens(t, annesToken+","+bensToken)}
	cfg := Config{
		Sandboxes: l.memory, Service: l.memory.lab.Service, Tokens: l.tokens, Secret: bytes.Repeat([]byte{7}, 32), MaxRequest: 1 << 20,
		Admit: func(*http.Request) error { return nil }, Life: t.Context(), Log: zerolog.Nop(),
		Templates: func() map[string]lasting.Template {
			return map[string]lasting.Template{"node": {Image: "node:24", CPUs: 2}}
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	l.surface = New(cfg)
	server := httptest.NewServer(l.surface)
	t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

// call calls the control plane and returns status and body.
func (l *lab) call(key, method, path, body string) (int, string, http.Header) {
	l.t.Helper()
	return l.send(method, path, body, http.Header{"X-Api-Key": {key}, "Content-Type": {"application/json"}})
}

func (l *lab) send(method, path, body string, header http.Header) (int, string, http.Header) {
	l.t.Helper()
	req, err := http.NewRequestWithContext(l.t.Context(), method, l.url+path, strings.NewReader(body))
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header = header
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(text)), res.Header
}

// box is a sandbox of anne's, as a client knows it.
type box struct {
	*lab
	ID    string `json:"sandboxID"`
	Token string `json:"envdAccessToken"`
}

func (l *lab) create(body string) *box {
	l.t.Helper()
	status, text, _ := l.call(annesKey, "POST", "/v2/sandboxes", body)
	b := &box{lab: l}
	if err := json.Unmarshal([]byte(text), b); status != http.StatusCreated || err != nil {
		l.t.Fatalf("%d %s %v", status, text, err)
	}
	return b
}

func (b *box) header() http.Header {
	return http.Header{"E2b-Sandbox-Id": {b.ID}, "X-Access-Token": {b.Token}}
}

// rpc calls a method of the Connect protocol that answers once.
func rpc[In, Out any](b *box, procedure string, in *In, change ...func(http.Header)) (*Out, error) {
	b.t.Helper()
	client := connect.NewClient[In, Out](http.DefaultClient, b.url+procedure, connect.WithProtoJSON())
	req := connect.NewRequest(in)
	for name, values := range b.header() {
		req.Header()[name] = values
	}
	for _, c := range change {
		c(req.Header())
	}
	res, err := client.CallUnary(b.t.Context(), req)
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// follow calls one that answers with a stream.
func followRPC[In, Out any](ctx context.Context, b *box, procedure string, in *In, change ...func(http.Header)) (*connect.ServerStreamForClient[Out], error) {
	b.t.Helper()
	client := connect.NewClient[In, Out](http.DefaultClient, b.url+procedure, connect.WithProtoJSON())
	req := connect.NewRequest(in)
	for name, values := range b.header() {
		req.Header()[name] = values
	}
	for _, c := range change {
		c(req.Header())
	}
	return client.CallServerStream(ctx, req)
}
