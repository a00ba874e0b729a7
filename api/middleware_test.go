package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// lines collects a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serveConfig serves a lab with a Config that change has changed.
func (l *lab) serveConfig(change func(*Config)) *httptest.Server {
	cfg := l.config()
	change(&cfg)
	server := httptest.NewServer(New(l.Service, cfg))
	l.T.Cleanup(server.Close)
	return server
}

// logTo has a server log, from a level on.
func logTo(log *lines, from zerolog.Level) func(*Config) {
	return func(cfg *Config) { cfg.Log = zerolog.New(log).Level(from) }
}

func TestRequestIDs(t *testing.T) {
	server := newLab(t, nil).serve()
	for _, tt := range []struct {
		name, given string
		kept        bool
	}{
		{"none", "", false},
		{"a UUID", "1f0c2a52-8d7e-4e0a-9d5b-0d8b6a1c2e3f", true},
		{"longest", strings.Repeat("a", 128), true},
		{"too long", strings.Repeat("a", 129), false},
		{"space", "a b", false},
		{"not ASCII", "é", false},
		{"tab", "a\tb", false},
	} {
		req := exchange{route: "GET /v1/nothing"}.request(t, server.URL)
		if tt.given != "" {
			req.Header.Set("X-Request-Id", tt.given)
		}
		failure, _ := refused(t, req)
		if (failure.RequestID == tt.given) != tt.kept || failure.RequestID == "" {
			t.Errorf("%s: %q became %q", tt.name, tt.given, failure.RequestID)
		}
	}
	response, err := http.Get(server.URL + "/v1/health")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.Header.Get("X-Request-Id") == "" {
		t.Error("a success has no X-Request-Id")
	}
}

// A stream that ends with an error tells the request's id with it, as any answer does, and the log has the
// fault under that id.
func TestErrorsAtTheEndOfStreams(t *testing.T) {
	broken := errors.New("disk broken")
	for name, call := range map[string]func(*testing.T, *httptest.Server) (event, header string){
		"streamed": func(t *testing.T, s *httptest.Server) (string, string) { return lastLine(t, s, `{"command":"x"}`) },
		"streamed detached": func(t *testing.T, s *httptest.Server) (string, string) {
			return lastLine(t, s, `{"command":"x","detachOnDisconnect":true}`)
		},
		"attached": func(t *testing.T, s *httptest.Server) (string, string) { return lastMessage(t, s, `{"command":"x"}`) },
		"attached detached": func(t *testing.T, s *httptest.Server) (string, string) {
			return lastMessage(t, s, `{"command":"x","detachOnDisconnect":true}`)
		},
		"followed log": func(t *testing.T, s *httptest.Server) (string, string) {
			return lastOf(t, exchange{route: "GET /log"}.request(t, s.URL))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, prints(dockerexec.Result{}, broken))
			var log lines
			cfg := l.config()
			logTo(&log, zerolog.InfoLevel)(&cfg)
			handler := New(l.Service, cfg)
			if name == "followed log" {
				p := l.Start(process.Intent{Command: "x"})
				handler = relays(l.Service, cfg, p.ID, func(context.Context, func(sandbox.LogPart) error) error { return broken })
			}
			over := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				defer close(over)
				handler.ServeHTTP(w, req)
			}))
			defer server.Close()
			event, id := call(t, server)
			<-over
			if id == "" || !strings.Contains(event, `"error":{"kind":"engine","message":"disk broken","requestId":"`+id+`"}`) {
				t.Errorf("request %q ends with %s", id, event)
			}
			if text := log.String(); !strings.Contains(text, `"requestId":"`+id+`"`) || !strings.Contains(text, `"error":"disk broken","message":"a call has failed"`) {
				t.Errorf("the log:\n%s", text)
			}
		})
	}
}

// lastLine is the last line of a streamed exec, and the answer's X-Request-Id.
func lastLine(t *testing.T, server *httptest.Server, body string) (line, id string) {
	t.Helper()
	req := exchange{route: "POST /v1/sandboxes/a/exec", body: body}.request(t, server.URL)
	req.Header.Set("Accept", ndjson)
	return lastOf(t, req)
}

func lastOf(t *testing.T, req *http.Request) (line, id string) {
	t.Helper()
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return all[len(all)-1], response.Header.Get("X-Request-Id")
}

// lastMessage is that of an attached exec, and the answer's X-Request-Id.
func lastMessage(t *testing.T, server *httptest.Server, body string) (message, id string) {
	t.Helper()
	conn, response, err := websocket.Dial(t.Context(), server.URL+"/v1/sandboxes/a/exec", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(body)); err != nil {
		t.Fatal(err)
	}
	for {
		_, text, err := conn.Read(t.Context())
		if err != nil {
			return message, response.Header.Get("X-Request-Id")
		}
		message = string(text)
	}
}

// full is an answer that takes so many bytes and no more.
type full struct {
	http.ResponseWriter
	room int
}

func (f *full) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p[:min(len(p), f.room)])
	f.room -= n
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

func (f *full) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// An answer that was not written to its end does not look like a whole one: the connection breaks. It is told of all
// the same.
func TestAnAnswerThatIsCutBreaks(t *testing.T) {
	seen := make(chan Call, 1)
	l := newLab(t, nil)
	cfg := l.config()
	cfg.Observed = func(c Call) { seen <- c }
	handler := New(l.Service, cfg)
	for name, tt := range map[string]struct {
		path  string
		room  int
		whole bool
	}{
		"nothing":             {"/v1/health", 0, false},
		"its beginning":       {"/v1/health", 10, false},
		"an error":            {"/v1/nothing", 10, false},
		"as much as there is": {"/v1/health", 1 << 20, true},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			handler.ServeHTTP(&full{ResponseWriter: w, room: tt.room}, req)
		}))
		response, err := server.Client().Get(server.URL + tt.path)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		if (err == nil) != tt.whole {
			t.Errorf("%s was written: %v", name, err)
		}
		<-seen
		server.Close()
	}
}

// TestAccessLog looks for everything that a call carried, at every level.
func TestAccessLog(t *testing.T) {
	var log lines
	server := newLab(t, sandboxtest.Started(func(ctx context.Context, _ dockerexec.Command, out dockerexec.Output) (dockerexec.Result, error) {
		zerolog.Ctx(ctx).Info().Msg("inside")
		return dockerexec.Result{}, out(dockerexec.Stdout, []byte("TOPSECRET-output"))
	})).serveConfig(func(cfg *Config) {
		logTo(&log, zerolog.TraceLevel)(cfg)
		cfg.LogCalls = func() bool { return true }
	})
	const body = `{"command":"echo TOPSECRET-command","env":{"A":"TOPSECRET-env"},"secrets":{"B":"TOPSECRET-secret"},"stdin":"TOPSECRET-stdin"}`
	for _, x := range []exchange{
		{route: "POST /v1/sandboxes/agent-7/exec?TOPSECRET=query", body: body},
		{route: "POST /v1/sandboxes/agent-7/exec", body: `{"command":"ls","env":{"TOPSECRET=x":"1"},"TOPSECRET":1}`},
		{route: "POST /v1/sandboxes/TOPSECRET/exec", body: `{"command":["TOPSECRET"]}`},
		{route: "GET /v1/TOPSECRET"},
		{route: "GET /v1/egress/decisions?TOPSECRET=1"},
	} {
		req := x.request(t, server.URL)
		req.Header.Set("Authorization", "Bearer TOPSECRET-token")
		req.Header.Set("X-Request-Id", "r-1")
		response, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	server.Close() // when the calls have been logged
	if strings.Contains(log.String(), "TOPSECRET") {
		t.Errorf("what a call carried is in the log:\n%s", log.String())
	}
	type line struct {
		Level, Message, RequestID, Method, Route, Caller, Sandbox, Kind string
		Status                                                          int
		Bytes                                                           int64
		Took                                                            float64
	}
	var calls []line
	for decoder := json.NewDecoder(strings.NewReader(log.String())); ; {
		var l line
		if err := decoder.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if l.RequestID != "r-1" {
			t.Errorf("a line without the request's id: %+v", l)
		}
		if l.Message == "call" {
			calls = append(calls, l)
		}
	}
	if len(calls) != 5 {
		t.Fatalf("%d calls in\n%s", len(calls), log.String())
	}
	first := calls[0]
	if first.Level != "info" || first.Method != "POST" || first.Route != "POST /v1/sandboxes/{id}/exec" || first.Status != 200 ||
		first.Bytes == 0 || first.Took <= 0 || first.Caller != "test" || first.Sandbox != "agent-7" || first.Kind != "" {
		t.Errorf("%+v", first)
	}
	if second := calls[1]; second.Status != 400 || second.Kind != "invalid" {
		t.Errorf("%+v", second)
	}
}

func TestAccessLogIsForDebuggingUnlessAskedFor(t *testing.T) {
	var log lines
	server := newLab(t, nil).serveConfig(logTo(&log, zerolog.InfoLevel))
	response, err := http.Get(server.URL + "/v1/sandboxes")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	server.Close()
	if log.String() != "" {
		t.Errorf("logged: %s", log.String())
	}
}

func TestFaultsOfTheServiceAreLogged(t *testing.T) {
	var log lines
	server := newLab(t, prints(dockerexec.Result{}, errors.New("disk broken"))).serveConfig(logTo(&log, zerolog.InfoLevel))
	response, err := http.Post(server.URL+"/v1/sandboxes/a/exec", "application/json", strings.NewReader(`{"command":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	server.Close()
	if !strings.Contains(log.String(), `"level":"warn"`) || !strings.Contains(log.String(), "disk broken") {
		t.Errorf("logged: %s", log.String())
	}
}

// TestSlowBodies sends less than was promised, and no more.
func TestSlowBodies(t *testing.T) {
	server := newLab(t, nil).serveConfig(func(cfg *Config) { cfg.BodyDelay = 20 * time.Millisecond })
	for _, tt := range []struct {
		request, kind string
		status        int
		message       string
	}{
		{"POST /v1/sandboxes/a/exec", "application/json", 400, "the body was cut short: it came too slowly"},
		{"PUT /v1/sandboxes/a/files?path=~/x", "application/octet-stream", 400, "the body was cut short: it came too slowly"},
		{"GET /v1/sandboxes", "application/json", 200, ""}, // which does not read it
		{"GET /v1/nothing", "application/json", 404, ""},
	} {
		t.Run(tt.request, func(t *testing.T) {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: 100\r\n\r\n{", tt.request, tt.kind); err != nil {
				t.Fatal(err)
			}
			answers := bufio.NewReader(conn)
			response, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != tt.status || !strings.Contains(string(text), tt.message) {
				t.Errorf("%d %s, %v; want %d %s", response.StatusCode, text, err, tt.status, tt.message)
			}
			// And the connection is given up, rather than waited on.
			if _, err := answers.ReadByte(); !errors.Is(err, io.EOF) && !isReset(err) {
				t.Errorf("the connection goes on: %v", err)
			}
		})
	}
}

func isReset(err error) bool { return err != nil && strings.Contains(err.Error(), "reset") }

// deadlines notes the last read deadline that a connection was given.
type deadlines struct {
	net.Conn
	mu   sync.Mutex
	last time.Time
	set  int
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = at
	d.set++
	return d.Conn.SetReadDeadline(at)
}

// counting notes how many bytes it was given as a reader.
type counting struct {
	net.Conn
	mu   sync.Mutex
	sent int64
}

func (c *counting) ReadFrom(from io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{c.Conn}, from)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent += n
	return n, err
}

// wrapped is a listener whose connections are wrapped.
type wrapped struct {
	net.Listener
	wrap func(net.Conn) net.Conn
}

func (w wrapped) Accept() (net.Conn, error) {
	conn, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return w.wrap(conn), nil
}

// A command may take longer than its body may: when that has come, there is no deadline any more, which
// would be taken for a caller who has gone.
func TestTheBodysDeadlineEndsWithTheBody(t *testing.T) {
	var conn *deadlines
	seen := make(chan time.Time, 1)
	server := httptest.NewUnstartedServer(newLab(t, sandboxtest.Started(func(context.Context, dockerexec.Command, dockerexec.Output) (dockerexec.Result, error) {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		seen <- conn.last
		return dockerexec.Result{}, nil
	})).handler())
	server.Listener = wrapped{server.Listener, func(c net.Conn) net.Conn { conn = &deadlines{Conn: c}; return conn }}
	server.Start()
	defer server.Close()
	before := 0
	for range 2 { // the second on the connection of the first
		_, _ = io.Copy(io.Discard, post(t, server.URL, "", `{"command":"x"}`))
		if last := <-seen; !last.IsZero() {
			t.Errorf("while the command runs, the connection is read until %v", last)
		}
		conn.mu.Lock()
		if conn.set < before+2 {
			t.Errorf("the body had no deadline: %d were set", conn.set-before)
		}
		before = conn.set
		conn.mu.Unlock()
	}
}

// TestDownloadsReachTheConnection shows that nothing between a file and its connection copies by itself.
func TestDownloadsReachTheConnection(t *testing.T) {
	_, content := randomFile(t, 1<<20)
	l := newLab(t, nil)
	l.File("f", string(content))
	var conn *counting
	server := httptest.NewUnstartedServer(l.handler())
	server.Listener = wrapped{server.Listener, func(c net.Conn) net.Conn { conn = &counting{Conn: c}; return conn }}
	server.Start()
	defer server.Close()
	response, err := http.Get(server.URL + "/v1/sandboxes/a/files?path=f")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if got, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	server.Close() // when the handler has ended; it may still be counting
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if conn.sent < int64(len(content))/2 {
		t.Errorf("the connection was given %d bytes of a file", conn.sent)
	}
}

func TestTheContractIsServed(t *testing.T) {
	server := newLab(t, nil).serve()
	response, err := http.Get(server.URL + "/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var document struct {
		OpenAPI string
		Paths   map[string]map[string]any
	}
	if err := json.NewDecoder(response.Body).Decode(&document); err != nil {
		t.Fatal(err)
	}
	if document.OpenAPI != "3.1.0" || len(document.Paths) != readContract(t).model.Paths.PathItems.Len() || response.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%q with %d paths, %q", document.OpenAPI, len(document.Paths), response.Header.Get("Content-Type"))
	}
	tag := response.Header.Get("ETag")
	for given, want := range map[string]int{tag: 304, `"x", ` + tag: 304, `"x"`: 200} {
		req := exchange{route: "GET /v1/openapi.json"}.request(t, server.URL)
		req.Header.Set("If-None-Match", given)
		again, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(again.Body)
		_ = again.Body.Close()
		if again.StatusCode != want || (len(text) == 0) != (want == 304) || again.Header.Get("ETag") != tag {
			t.Errorf("%s: %d with %d bytes", given, again.StatusCode, len(text))
		}
	}
}

func TestAllowedMethodsAreListed(t *testing.T) {
	server := newLab(t, nil).serve()
	for route, want := range map[string]string{
		"DELETE /v1/health":                   "GET, HEAD",
		"PATCH /v1/sandboxes/a":               "GET, HEAD, PUT, DELETE",
		"GET /v1/sandboxes/a/read":            "POST",
		"PUT /v1/sandboxes/a/processes/p":     "GET, HEAD, DELETE",
		"OPTIONS /v1/sandboxes/a/exec":        "GET, HEAD, POST",
		"DELETE /v1/sandboxes/a/files?path=x": "GET, HEAD, PUT",
	} {
		response, err := http.DefaultClient.Do(exchange{route: route}.request(t, server.URL))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusMethodNotAllowed || response.Header.Get("Allow") != want {
			t.Errorf("%s: %d, Allow %q, want %q", route, response.StatusCode, response.Header.Get("Allow"), want)
		}
	}
}
