package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/warm"
)

// pipes is a listener without sockets, so that time can be made up.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.done)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// desk is a lab's server on pipes.
type desk struct {
	*lab
	t      *testing.T // of a time of its own
	server *http.Server
	at     *pipes
	served chan error
}

// atDesk runs a scenario of a caller who listens, in a time of its own. What commands do is run.
func atDesk(t *testing.T, run func(*desk) runFunc, scenario func(*desk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{t: t, at: &pipes{make(chan net.Conn), make(chan struct{})}, served: make(chan error, 1)}
		d.lab = newLab(t, func(ctx context.Context, spec dockerexec.Spec, c warm.Command, out session.Output) (warm.Result, error) {
			return run(d)(ctx, spec, c, out)
		})
		d.server = &http.Server{Handler: d.handler(), ReadHeaderTimeout: time.Minute}
		go func() { d.served <- d.server.Serve(d.at) }()
		defer func() {
			_ = d.server.Close()
			if err := <-d.served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		}()
		scenario(d)
	})
}

func (d *desk) add(names ...string) {
	for _, name := range names {
		d.Decisions().Add(decisions.Decision{User: "alice", Name: name, Via: decisions.DNS, Verdict: decisions.Denied})
	}
}

// follow asks for decisions.
func (d *desk) follow(query string) *followed {
	d.t.Helper()
	return d.open("/v1/egress/decisions?follow=true" + query)
}

// get asks for what is no stream, and returns its status.
func (d *desk) get(path string) int {
	d.t.Helper()
	conn, far := net.Pipe()
	defer conn.Close()
	d.at.conns <- far
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		d.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		d.t.Fatal(err)
	}
	return response.StatusCode
}

// open asks for a stream, and reads no more of it than it is told to.
func (d *desk) open(path string) *followed {
	d.t.Helper()
	conn, far := net.Pipe()
	d.at.conns <- far
	_ = conn.SetDeadline(time.Now().Add(10 * keepAlive))
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		d.t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
	if err != nil || response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != ndjson {
		d.t.Fatalf("%+v %v", response, err)
	}
	return &followed{d.t, conn, bufio.NewReaderSize(response.Body, 16)}
}

type followed struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Reader
}

// line is the next line in short.
func (f *followed) line() string {
	f.t.Helper()
	text, err := f.lines.ReadString('\n')
	if err != nil {
		f.t.Fatal(err)
	}
	if text == "\n" {
		return ""
	}
	var event types.DecisionEvent
	if err := json.Unmarshal([]byte(text), &event); err != nil {
		f.t.Fatal(err)
	}
	if event.Decision == nil {
		return fmt.Sprintf("lost %d", event.Lost)
	}
	return fmt.Sprintf("%d: %s x%d", event.Seq, event.Name, event.Count)
}

func (f *followed) wants(lines ...string) {
	f.t.Helper()
	for _, want := range lines {
		if got := f.line(); got != want {
			f.t.Fatalf("%q, want %q", got, want)
		}
	}
}

func TestFollowersSeeWhatIsThereAndThenWhatComes(t *testing.T) {
	atDesk(t, nil, func(d *desk) {
		d.add("a.org", "b.org", "b.org", "x.net")
		all, last, none, some := d.follow(""), d.follow("&limit=1"), d.follow("&limit=0"), d.follow("&name=org&after=2")
		all.wants("1: a.org x1", "3: b.org x2", "4: x.net x1")
		last.wants("4: x.net x1")
		some.wants("3: b.org x2")
		d.add("b.org", "x.net")
		all.wants("5: b.org x1", "6: x.net x1")
		last.wants("5: b.org x1", "6: x.net x1")
		none.wants("5: b.org x1", "6: x.net x1")
		some.wants("5: b.org x1")
	})
}

func TestSilentStreamIsKeptAlive(t *testing.T) {
	atDesk(t, nil, func(d *desk) {
		f, begun := d.follow(""), time.Now()
		f.wants("", "")
		d.add("a.org")
		f.wants("1: a.org x1", "")
		if silent := time.Since(begun); silent != 3*keepAlive {
			t.Errorf("three empty lines in %v", silent)
		}
	})
}

// A follower that reads nothing has one line on its way and 1024 waiting; of those the oldest are dropped.
func TestSlowFollowerIsToldWhatItLost(t *testing.T) {
	atDesk(t, nil, func(d *desk) {
		f := d.follow("")
		d.add("a.org")
		synctest.Wait()
		for range 1024 + 7 {
			d.add("b.org")
		}
		f.wants("1: a.org x1", "lost 7", "9: b.org x1", "10: b.org x1")
	})
}

func TestStreamEndsWithTheService(t *testing.T) {
	for name, read := range map[string]bool{"proper end": true, "nobody reads": false} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, nil, func(d *desk) {
				f, begun := d.follow(""), time.Now()
				d.add("a.org")
				synctest.Wait()
				close(d.stopping)
				over := make(chan error, 1)
				go func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					over <- d.server.Shutdown(ctx)
				}()
				if read {
					f.wants("1: a.org x1")
					if rest, err := io.ReadAll(f.lines); err != nil || len(rest) > 0 {
						t.Errorf("%q %v", rest, err)
					}
				}
				if err := <-over; err != nil || time.Since(begun) >= 2*lastWrite {
					t.Errorf("stopped after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}

func TestFollowersThatGoMakeRoom(t *testing.T) {
	atDesk(t, nil, func(d *desk) {
		var all []*followed
		for range decisions.MaxFollowers / 4 {
			all = append(all, d.follow(""))
		}
		_ = all[4].conn.Close() // while it is idle
		d.add("a.org")
		synctest.Wait()
		_ = all[5].conn.Close() // while it is written to
		synctest.Wait()
		d.follow("&limit=0")
		d.follow("&limit=0")
		if status := d.get("/v1/egress/decisions?follow=true"); status != http.StatusTooManyRequests {
			t.Errorf("one more: %d", status)
		}
	})
}

// A decision made between Follow and Recent is in both, but is sent once.
func TestNothingIsToldTwice(t *testing.T) {
	l := newLab(t, nil)
	add := func(names ...string) {
		for _, name := range names {
			l.Decisions().Add(decisions.Decision{User: "alice", Name: name, Via: decisions.DNS, Verdict: decisions.Denied})
		}
	}
	add("a.org", "b.org")
	ctx, leave := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		follower, err := l.Decisions().Follow(decisions.Filter{})
		if err != nil {
			t.Error(err)
			return
		}
		defer follower.Close()
		add("b.org", "c.org", "b.org")
		_, stream := (&server{cfg: l.config()}).openStream(w, req, ndjson)
		defer stream.close()
		stream.decisions(ctx, follower, decisionQuery{limit: 1}.recent(l.Decisions()))
	}))
	defer server.Close()
	defer leave()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	f := &followed{t: t, lines: bufio.NewReader(response.Body)}
	f.wants("5: b.org x3", "4: c.org x1")
	add("b.org")
	f.wants("6: b.org x1")
}
