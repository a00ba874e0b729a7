package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// The tokens of the callers in these tests, and those for whom they act.
const (
	fullToken  = "full-0123456789abcdef0123456789abcdef"
	aliceToken = "alice-0123456789abcdef0123456789abcdef"
	bobToken   = "bob-0123456789abcdef0123456789abcdef"
	tokensText = `{"tokens":[{"name":"full","token":"` + fullToken + `"},{"name":"alice","token":"` + aliceToken + `","users":["alice"]},
		{"name":"bob","token":"` + bobToken + `","users":["bob"]}]}`
)

// ways are servers of one service, by every way in.
type ways struct {
	*lab
	tcp    string // URLs
	unix   string // for whoever runs this test
	closed string // for another uid
	client *http.Client
	tokens *access.Tokens
}

func openWays(t *testing.T) *ways {
	t.Helper()
	w := &ways{lab: newLab(t, nil, func(o *sandboxtest.Options) {
		o.Executor = sandboxtest.Executor{List: []dockerexec.Summary{{Name: "daycare-sandbox-alices", User: "alice", Runtime: "runsc", State: "idle"}}}
	})}
	w.Decisions().Add(decisions.Decision{User: "alice", Name: "alices.example.org", Via: decisions.DNS, Verdict: decisions.Denied})
	w.tokens = readTokens(t, tokensText)
	sockets := map[string]string{}
	w.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		if socket := sockets[strings.TrimSuffix(addr, ":80")]; socket != "" {
			return d.DialContext(ctx, "unix", socket)
		}
		return d.DialContext(ctx, network, addr)
	}}}
	t.Cleanup(w.client.CloseIdleConnections)
	serve := func(authenticate Authenticator, socket string) string {
		server := httptest.NewUnstartedServer(New(w.Service, Config{
			Authenticator: authenticate, Tokens: w.tokens, Stopping: w.stopping, Credentials: w.Credentials,
			Version: "v1", MaxRequest: testMaxRequest, MaxOutput: testMaxOutput, Log: zerolog.Nop(),
			Warnings: []string{"about alices"},
			Metrics:  http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "alices 1\n") }),
		}))
		if socket == "" {
			server.Start()
			t.Cleanup(server.Close)
			return server.URL
		}
		_ = server.Listener.Close()
		listener, err := net.Listen("unix", filepath.Join(t.TempDir(), socket))
		if err != nil {
			t.Fatal(err)
		}
		sockets[socket] = listener.Addr().String()
		server.Listener, server.Config.ConnContext = Listener(listener), access.ConnContext
		server.Start()
		t.Cleanup(server.Close)
		return "http://" + socket
	}
	w.tcp = serve(access.TCP{Tokens: w.tokens, Listen: "127.0.0.1:1"}.Caller, "")
	w.unix = serve(access.Unix{Peers: []uint32{uint32(os.Getuid())}}.Caller, "open")
	w.closed = serve(access.Unix{Peers: []uint32{uint32(os.Getuid()) + 1}}.Caller, "closed")
	return w
}

func readTokens(t *testing.T, text string) *access.Tokens {
	t.Helper()
	name := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := access.ReadTokens(name)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// callerClass is somebody who calls, and where.
type callerClass struct {
	name, url, token string
}

// ask sends the contract's own example of a request for a sandbox.
func (w *ways) ask(t *testing.T, c contract, r route, by callerClass, id string) (status int, text string) {
	t.Helper()
	req := c.example(t, r, by.url, map[string]string{"id": id, "processId": w.process, "userId": strings.TrimSuffix(id, "s"), "name": "github"})
	if by.token != "" {
		req.Header.Set("Authorization", "Bearer "+by.token)
	}
	response, err := w.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, requestIDs.ReplaceAllString(string(body), "")
}

var requestIDs = regexp.MustCompile(`,"requestId":"[^"]*"`)

// example is a request that the contract has an example of.
func (c contract) example(t testing.TB, r route, url string, values map[string]string) *http.Request {
	t.Helper()
	method, path, _ := strings.Cut(r.pattern, " ")
	item, ok := c.model.Paths.PathItems.Get(path)
	if !ok {
		t.Fatalf("the contract has no %s", path)
	}
	operation := item.GetOperations().GetOrZero(strings.ToLower(method))
	for name, value := range values {
		path = strings.ReplaceAll(path, "{"+name+"}", value)
	}
	var query []string
	for _, p := range append(append([]*v3.Parameter{}, item.Parameters...), operation.Parameters...) {
		if p.In == "query" && p.Required != nil && *p.Required {
			query = append(query, p.Name+"=notes.txt")
		}
	}
	var body io.Reader
	kind := ""
	if operation.RequestBody != nil {
		first := operation.RequestBody.Content.First()
		kind = first.Key()
		body = strings.NewReader("some bytes")
		if kind == "application/json" {
			body = strings.NewReader(string(firstExample(t, first.Value())))
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url+path+"?"+strings.Join(query, "&"), body)
	if err != nil {
		t.Fatal(err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	return req
}

func firstExample(t testing.TB, media *v3.MediaType) []byte {
	t.Helper()
	for _, e := range media.Examples.FromOldest() {
		var value any
		if err := e.Value.Decode(&value); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(value, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	t.Fatal("a request without an example")
	return nil
}

// isOfOne reports whether a route is about one sandbox or one user.
func isOfOne(r route) bool {
	return strings.Contains(r.pattern, "{id}") || strings.Contains(r.pattern, "{userId}")
}

// TestEveryRouteForEveryCaller walks the table of routes with every kind of caller. Every known caller gets
// the answer of a caller who acts for everyone, except for what belongs to another user: that is answered as
// if it did not exist.
func TestEveryRouteForEveryCaller(t *testing.T) {
	c := readContract(t)
	w := openWays(t)
	close(w.stopping) // so that what is followed ends
	full := callerClass{"full token", w.tcp, fullToken}
	strangers := []struct {
		callerClass
		status int
	}{
		{callerClass{"no token", w.tcp, ""}, http.StatusUnauthorized},
		{callerClass{"wrong token", w.tcp, "x" + fullToken}, http.StatusUnauthorized},
		{callerClass{"wrong uid", w.closed, ""}, http.StatusForbidden},
		{callerClass{"wrong uid with a token", w.closed, fullToken}, http.StatusForbidden},
	}
	friends := []callerClass{{"right uid", w.unix, ""}, {"token of the user", w.tcp, aliceToken}}
	bob := callerClass{"token of another user", w.tcp, bobToken}
	for _, r := range routes {
		t.Run(r.pattern, func(t *testing.T) {
			w.ready("alices")
			for _, by := range strangers {
				if status, text := w.ask(t, c, r, by.callerClass, "alices"); status != by.status || strings.Contains(text, "alices") {
					t.Errorf("%s: %d %s, want %d", by.name, status, text, by.status)
				}
			}
			status, text := w.ask(t, c, r, bob, "alices")
			goneStatus, gone := w.ask(t, c, r, bob, "nobodys")
			switch {
			case r.who == forOperators:
				if status != http.StatusForbidden || strings.Contains(text, "alices") {
					t.Errorf("%s: %d %s", bob.name, status, text)
				}
			case r.pattern == "PUT /v1/sandboxes/{id}":
				if status != http.StatusForbidden { // the example is alice's
					t.Errorf("%s: %d %s", bob.name, status, text)
				}
			case isOfOne(r):
				if status != goneStatus || strings.ReplaceAll(text, "alice", "nobody") != gone || status < 400 {
					t.Errorf("%s: %d %s, for what does not exist: %d %s", bob.name, status, text, goneStatus, gone)
				}
			default:
				if status != http.StatusOK || strings.Contains(text, "alices") {
					t.Errorf("%s: %d %s", bob.name, status, text)
				}
			}
			if _, err := w.Get("alices"); err != nil {
				t.Fatalf("it is gone: %v", err)
			}
			wanted, _ := w.ask(t, c, r, full, "alices")
			stops := wanted == http.StatusServiceUnavailable && strings.HasSuffix(r.pattern, "/wait") // as the lab's service does
			if wanted == http.StatusUnauthorized || wanted == http.StatusForbidden || wanted >= 500 && !stops {
				t.Errorf("%s: %d", full.name, wanted)
			}
			for _, by := range friends {
				w.ready("alices")
				want := wanted
				if r.who == forOperators && by.token != "" {
					want = http.StatusForbidden
				}
				if status, text := w.ask(t, c, r, by, "alices"); status != want && status+want != http.StatusOK+http.StatusCreated {
					t.Errorf("%s: %d %s, want %d", by.name, status, text, want)
				}
			}
		})
	}
}

// An attached exec finds its sandbox after the connection was upgraded.
func TestAttachingToAnothersSandbox(t *testing.T) {
	w := openWays(t)
	w.ready("alices")
	said := map[string]string{}
	for _, id := range []string{"alices", "nobodys"} {
		conn, _, err := websocket.Dial(t.Context(), w.tcp+"/v1/sandboxes/"+id+"/exec", &websocket.DialOptions{
			HTTPHeader: http.Header{"Authorization": {"Bearer " + bobToken}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"command":"ls"}`)); err != nil {
			t.Fatal(err)
		}
		_, message, err := conn.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		said[id] = strings.ReplaceAll(requestIDs.ReplaceAllString(string(message), ""), "alices", "nobodys")
		_ = conn.CloseNow()
	}
	if said["alices"] != said["nobodys"] || !strings.Contains(said["alices"], "notFound") {
		t.Errorf("%q", said)
	}
	for _, header := range []http.Header{{}, {"Authorization": {"Bearer " + bobToken}, "Origin": {w.tcp}}} {
		conn, response, err := websocket.Dial(t.Context(), w.tcp+"/v1/sandboxes/alices/exec", &websocket.DialOptions{HTTPHeader: header})
		if err == nil {
			_ = conn.CloseNow()
			t.Fatalf("%v is let in", header)
		}
		if response == nil || response.StatusCode != http.StatusUnauthorized && response.StatusCode != http.StatusForbidden {
			t.Errorf("%v: %v", header, err)
		}
	}
}

// Without an authenticator nobody is admitted, and for a caller who acts for nobody, nothing exists.
func TestUnsetAuthenticatorRefusesAll(t *testing.T) {
	w := openWays(t)
	w.ready("alices")
	nobody := func(*http.Request) (access.Caller, error) {
		return access.Caller{Name: "bob", Users: ids.OnlyUsers()}, nil
	}
	c := readContract(t)
	close(w.stopping) // so that what is followed ends
	for name, authenticate := range map[string]Authenticator{"no authenticator": nil, "nobody": nobody} {
		cfg := w.config()
		cfg.Authenticator = authenticate
		server := httptest.NewServer(New(w.Service, cfg))
		for _, r := range routes {
			status, text := w.ask(t, c, r, callerClass{name, server.URL, ""}, "alices")
			open := authenticate != nil && r.who == forUsers && !isOfOne(r) // and says nothing of alice
			if (status == http.StatusOK) != open || authenticate == nil && status != http.StatusForbidden || open && r.pattern != "GET /v1/openapi.json" && strings.Contains(text, "alice") {
				t.Errorf("%s: %s answers %d %.1000s", name, r.pattern, status, text)
			}
		}
		server.Close()
	}
}

func TestRoutesWithoutAClassTakeNobody(t *testing.T) {
	m := &middleware{cfg: Config{Authenticator: anyone, Log: zerolog.Nop()}, service: newLab(t, nil).Service}
	out := httptest.NewRecorder()
	m.serve(out, httptest.NewRequest(http.MethodGet, "/v1/new", nil), route{pattern: "GET /v1/new", handle: func(*server, http.ResponseWriter, *http.Request) error {
		t.Error("it is run")
		return nil
	}})
	if out.Code != http.StatusForbidden {
		t.Errorf("status %d", out.Code)
	}
	for _, r := range routes {
		if r.who != forUsers && r.who != forOperators {
			t.Errorf("%s does not say whose calls it takes", r.pattern)
		}
	}
}

// A caller who follows as often as it may leaves places for another caller and for the operator.
func TestFollowersLeavePlacesToOthers(t *testing.T) {
	w := openWays(t)
	follow := func(path, token string) (status int) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.tcp+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		response, err := w.client.Do(req) // which goes on until the test ends
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response.StatusCode
	}
	for _, path := range []string{"/v1/egress/decisions?follow=true", "/v1/events"} {
		n := 0
		for n < 100 && follow(path, aliceToken) == http.StatusOK {
			n++
		}
		if n < 8 || n > 16 {
			t.Errorf("%s: one caller has %d places", path, n)
		}
		for _, token := range []string{bobToken, fullToken} {
			if status := follow(path, token); status != http.StatusOK {
				t.Errorf("%s: another is answered %d", path, status)
			}
		}
	}
}
