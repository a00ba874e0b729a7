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
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

const (
	annesKey = "0123456789abcdef0123456789abcdef"
	bensKey  = "fedcba9876543210fedcba9876543210"
)

// lab is the surface over persistent sandboxes, on an engine that runs commands on this host.
type lab struct {
	t         *testing.T
	url       string
	surface   http.Handler
	facade    *sandboxtest.Lab
	sandboxes *persistent.Sandboxes
	engine    *engine
	tokens    *access.Tokens
}

const (
	annesToken = `{"name":"anne","token":"` + annesKey + `"}`
	bensToken  = `{"name":"ben","token":"` + bensKey + `","users":["ben"]}`
)

// readTokens are those of a file with these entries.
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
	return newLabWith(t, nil, change...)
}

// newLabWith is a lab whose facade counts; without quotas it does not.
func newLabWith(t *testing.T, quotas *quota.Ledger, change ...func(*Config)) *lab {
	t.Helper()
	l := &lab{t: t, tokens: readTokens(t, annesToken+","+bensToken)}
	l.facade = sandboxtest.NewLab(t, nil, func(o *sandboxtest.Options) {
		l.engine = newEngine(o.Dir)
		o.Persistent = l.openSandboxes
		o.Config = func(c *sandbox.Config) { c.Quotas = quotas }
		o.Platform = func(p *plan.PlatformConfig) {
			p.Settings.Limits = dockerexec.Limits{NanoCPUs: 2e9, Memory: 2 << 30}
			p.Overrides = func(context.Context, string) (*images.Overrides, error) {
				return images.NewOverrides(filepath.Join(o.Dir, "image"), images.Original{Passwd: []byte("root:x:0:0::/root:/bin/bash\n"), Group: []byte("root:x:0:\n")}), nil
			}
		}
	})
	cfg := Config{
		Service: l.facade.Service, Sandboxes: l.sandboxes, Callers: access.TCP{Tokens: l.tokens, Hosts: []string{"example.com"}}, Secret: bytes.Repeat([]byte{7}, 32), MaxRequest: 1 << 20,
		Life: t.Context(), Log: zerolog.Nop(),
		Templates: NewTemplates(map[string]persistent.Template{baseTemplate: {CPUs: 1.5, Memory: 1 << 30}, "node": {CPUs: 2}}),
	}
	for _, c := range change {
		c(&cfg)
	}
	l.tokens = cfg.Callers.Tokens
	l.surface = New(cfg)
	server := httptest.NewServer(l.surface)
	t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

// openSandboxes opens the sandboxes of the lab's facade, which are those of the surface.
func (l *lab) openSandboxes(cfg persistent.Config) *persistent.Sandboxes {
	l.t.Helper()
	var emptied sync.WaitGroup
	emptied.Go(func() { cfg.Trash.Work(l.t.Context()) })
	cfg.Executor, cfg.Owners = l.engine, l
	var err error
	if l.sandboxes, err = persistent.Open(cfg); err != nil {
		l.t.Fatal(err)
	}
	l.sandboxes.Start(context.Background())
	l.t.Cleanup(func() {
		l.sandboxes.Shutdown()
		l.engine.close()
		emptied.Wait() // it moves what it removes, and the lab's folder goes now
	})
	return l.sandboxes
}

// Owner is that of the present tokens.
func (l *lab) Owner(name string) (quota.Token, bool) { return l.tokens.Owner(name) }

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

// home is the sandbox's on this host.
func (b *box) home() string { return b.engine.home(b.ID) }

// persistent is the sandbox as the surface has it.
func (b *box) persistent() *persistent.Sandbox {
	b.t.Helper()
	found, err := b.sandboxes.Any(b.ID)
	if err != nil {
		b.t.Fatal(err)
	}
	return found
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
