package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/process"
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

// A stream that ends with an error includes the request's id, as any answer does, and the log has the fault
// under that id.
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
			l := newLab(t, prints(warm.Result{}, broken))
			var log lines
			cfg := l.config()
			logTo(&log, zerolog.InfoLevel)(&cfg)
			handler := New(l.Service, cfg)
			if name == "followed log" {
				p := l.Start(process.Intent{Command: "x"})
				handler = relays(l.Service, cfg, p.ID, func(context.Context, func(process.LogPart) error) error { return broken })
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

// An answer that was cut short does not look complete: the connection breaks. Its event is published all the
// same.
func TestAnAnswerThatIsCutBreaks(t *testing.T) {
	seen := make(chan Call, 1)
	handler := newLab(t, nil, observed(func(c Call) { seen <- c })).handler()
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
