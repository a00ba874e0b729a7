package api

import (
	"bufio"
	"bytes"
	"context"
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

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

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

// TestRegistrationsThatCannotBeRead are the caller's fault, also where a registration's body says which host answers it.
func TestRegistrationsThatCannotBeRead(t *testing.T) {
	l := newLab(t, nil)
	for _, tt := range []struct {
		name, kind, body string
		length           int
		cut              bool // nothing more is to come
		delay            time.Duration
		status           int
		is               types.Kind
		message          string
	}{
		{"cut", "application/json", `{"userId":`, 100, true, time.Minute, 400, types.Invalid, "the body was cut short"},
		{"slow", "application/json", `{"userId":`, 100, false, 20 * time.Millisecond, 400, types.Invalid, "the body was cut short: it came too slowly"},
		{"too large", "application/json", strings.Repeat(" ", testMaxRequest+1), testMaxRequest + 1, false, time.Minute, 413, types.TooLarge, "the body is larger than the limit"},
		{"another Content-Type", "text/plain", `{"userId":"alice"}`, 18, false, time.Minute, 400, types.Invalid, `the body has Content-Type "text/plain"`},
	} {
		for column, router := range map[string]Router{"one host": nil, "a cluster": &others{t: t}} {
			t.Run(tt.name+", "+column, func(t *testing.T) {
				server := l.serveConfig(func(cfg *Config) { cfg.BodyDelay, cfg.Router = tt.delay, router })
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if _, err := fmt.Fprintf(conn, "PUT /v1/sandboxes/a HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", tt.kind, tt.length, tt.body); err != nil {
					t.Fatal(err)
				}
				if tt.cut {
					_ = conn.(*net.TCPConn).CloseWrite()
				}
				response, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				var failure types.Failure
				if err := json.UnmarshalRead(response.Body, &failure); err != nil {
					t.Fatal(err)
				}
				if response.StatusCode != tt.status || failure.Error.Kind != tt.is || !strings.Contains(failure.Error.Message, tt.message) {
					t.Errorf("%d %+v, want %d %s with %q", response.StatusCode, failure.Error, tt.status, tt.is, tt.message)
				}
			})
		}
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

// A command may run longer than its body may take: once the body has arrived, no deadline is left that would
// look like a caller who has gone.
func TestTheBodysDeadlineEndsWithTheBody(t *testing.T) {
	var conn *deadlines
	seen := make(chan time.Time, 1)
	server := httptest.NewUnstartedServer(newLab(t, sandboxtest.Started(func(context.Context, warm.Command, session.Output) (warm.Result, error) {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		seen <- conn.last
		return warm.Result{}, nil
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
