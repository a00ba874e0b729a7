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
	"github.com/daycare-run/sandbox/internal/sandbox"
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

// serveConfig serves a fake with a Config of the test's own.
func serveConfig(t *testing.T, service *fakeService, cfg Config) *httptest.Server {
	t.Helper()
	cfg.Authenticator, cfg.MaxRequest, cfg.MaxOutput = anyone, testMaxRequest, testMaxOutput
	server := httptest.NewServer(New(service, cfg))
	t.Cleanup(server.Close)
	return server
}

func TestRequestIDs(t *testing.T) {
	server := serveFake(t, &fakeService{})
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
	response, err := http.Get(serveFake(t, &fakeService{health: func(context.Context) sandbox.Health { return sandbox.Health{} }}).URL + "/v1/health")
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
			return lastOf(t, exchange{route: "GET /v1/sandboxes/a/processes/p/log?follow=true"}.request(t, s.URL))
		},
	} {
		t.Run(name, func(t *testing.T) {
			service := detaching(t, func(_ context.Context, e *sandbox.Detached) (sandbox.Result, error) {
				e.Started()
				return sandbox.Result{}, broken
			})
			service.exec = func(_ context.Context, _ string, r sandbox.Request, _ dockerexec.Output) (sandbox.Result, error) {
				r.Started()
				return sandbox.Result{}, broken
			}
			service.fakeProcesses = logs(broken, has(web())).fakeProcesses
			var log lines
			handler := New(service, Config{Authenticator: anyone, MaxRequest: testMaxRequest, MaxOutput: testMaxOutput, Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
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
	service := &fakeService{health: func(context.Context) sandbox.Health { return sandbox.Health{} }}
	handler := New(service, Config{Authenticator: anyone, MaxRequest: testMaxRequest, Log: zerolog.Nop(), Observed: func(c Call) { seen <- c }})
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
	service := &fakeService{exec: func(ctx context.Context, _ string, _ sandbox.Request, out dockerexec.Output) (sandbox.Result, error) {
		zerolog.Ctx(ctx).Info().Msg("inside")
		return ended(0), out(dockerexec.Stdout, []byte("TOPSECRET-output"))
	}}
	server := serveConfig(t, service, Config{LogCalls: func() bool { return true }, Log: zerolog.New(&log).Level(zerolog.TraceLevel)})
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
	server := serveConfig(t, &fakeService{list: func() []sandbox.Sandbox { return nil }, containers: func() []dockerexec.Container { return nil }},
		Config{Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
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
	server := serveConfig(t, &fakeService{get: func(string) (sandbox.Sandbox, error) { return sandbox.Sandbox{}, errors.New("disk broken") }},
		Config{Log: zerolog.New(&log).Level(zerolog.InfoLevel)})
	response, err := http.Get(server.URL + "/v1/sandboxes/a")
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
	server := serveConfig(t, &fakeService{
		list: func() []sandbox.Sandbox { return nil },
		fakeFiles: fakeFiles{upload: func(r sandbox.UploadRequest) (sandbox.Written, error) {
			_, err := io.Copy(io.Discard, r.Body)
			return sandbox.Written{}, err
		}},
	}, Config{BodyDelay: 20 * time.Millisecond, Log: zerolog.Nop()})
	for _, tt := range []struct {
		request, kind string
		status        int
		message       string
	}{
		{"POST /v1/sandboxes/a/exec", "application/json", 400, "the body was cut short: it came too slowly"},
		{"PUT /v1/sandboxes/a/files?path=x", "application/octet-stream", 400, "the body was cut short: it came too slowly"},
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
	server := httptest.NewUnstartedServer(serveHandler(&fakeService{exec: func(context.Context, string, sandbox.Request, dockerexec.Output) (sandbox.Result, error) {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		seen <- conn.last
		return ended(0), nil
	}}))
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
	file, content := randomFile(t, 1<<20)
	var conn *counting
	server := httptest.NewUnstartedServer(serveHandler(&fakeService{fakeFiles: fakeFiles{download: func(string) (sandbox.Download, error) {
		return sandbox.Download{ReadSeekCloser: file, Name: "f", Size: int64(len(content))}, nil
	}}}))
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
	server := serveFake(t, &fakeService{})
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
	server := serveFake(t, &fakeService{})
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
