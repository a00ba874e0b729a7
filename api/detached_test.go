package api

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/attach"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// detaching is a service whose execs with detachOnDisconnect do what run says.
func detaching(t *testing.T, run func(context.Context, *sandbox.Detached) (sandbox.Result, error)) *fakeService {
	t.Helper()
	execs := attach.NewStore[sandbox.Result](attach.Config{Quotas: quota.New(quota.Limits{PerUser: quota.Bounds{DetachedExecs: 3}, Total: quota.Bounds{DetachedExecs: 3}}), Keep: time.Hour})
	t.Cleanup(execs.Shutdown)
	return &fakeService{fakeDetached: fakeDetached{execs: execs, run: run}}
}

// echoes is a command that prints its stdin, and ends with a signal or its stdin.
func echoes(ctx context.Context, e *sandbox.Detached) (sandbox.Result, error) {
	e.Started()
	read := make(chan error, 1)
	go func() {
		buffer := make([]byte, 1000)
		for {
			n, err := e.Input.Stdin().Read(buffer)
			_ = e.Output(ctx, dockerexec.Stdout, buffer[:n])
			if err != nil {
				read <- err
				return
			}
		}
	}()
	select {
	case signal := <-e.Input.Signals():
		e.Input.End(io.EOF)
		<-read
		return sandbox.Result{Result: dockerexec.Result{Signal: signal}, Cwd: "/home"}, nil
	case <-read:
		return ended(3), nil
	case <-ctx.Done():
		e.Input.End(io.EOF)
		<-read
		return sandbox.Result{}, context.Cause(ctx)
	}
}

// reattachTo comes back to an exec.
func reattachTo(t *testing.T, server *httptest.Server, execID, query string) *caller {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), server.URL+"/v1/sandboxes/a/execs/"+execID+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	return &caller{t: t, conn: conn}
}

func (c *caller) prints(want string) {
	c.t.Helper()
	if event, got := c.hear(); string(got) != want {
		c.t.Fatalf("%q %+v, want %q", got, event, want)
	}
}

func TestCallersComeBack(t *testing.T) {
	server := serveFake(t, detaching(t, echoes))
	c := attachTo(t, server, `{"command":"cat","detachOnDisconnect":true}`)
	id := c.expect(types.EventStart).ExecID
	c.feed([]byte("one "))
	c.expect(types.EventStdin)
	c.prints("\x01one ")
	_ = c.conn.CloseNow()

	c = reattachTo(t, server, id, "")
	if start := c.expect(types.EventStart); start.ExecID != id || start.Lost != 0 {
		t.Errorf("%+v", start)
	}
	if room := c.expect(types.EventStdin); room.Bytes != types.StdinWindow {
		t.Errorf("%+v", room)
	}
	c.prints("\x01one ")
	c.feed([]byte("two "))
	c.expect(types.EventStdin)
	c.prints("\x01two ")

	other := reattachTo(t, server, id, "?offset=4")
	failure := c.last(types.EventError).Error
	if failure.Kind != types.Conflict || !strings.Contains(failure.Message, "another caller has attached") {
		t.Errorf("%+v", failure)
	}
	other.expect(types.EventStart)
	other.expect(types.EventStdin)
	other.prints("\x01two ")
	other.say(`{"type":"resize","rows":1,"cols":1}`)
	if failure := other.last(types.EventError).Error; failure.Kind != types.Invalid {
		t.Errorf("%+v", failure)
	}

	c = reattachTo(t, server, id, "?offset=8")
	c.expect(types.EventStart)
	c.expect(types.EventStdin)
	c.say(`{"type":"eof"}`)
	if exit := c.last(types.EventExit); *exit.Result.ExitCode != 3 {
		t.Errorf("%+v", exit)
	}
	c = reattachTo(t, server, id, "?offset=9")
	if failure := c.last(types.EventError).Error; failure.Kind != types.Invalid || !strings.Contains(failure.Message, "offset 9") {
		t.Errorf("%+v", failure)
	}
}

// A stream's caller goes, and comes back over a WebSocket to what has ended meanwhile.
func TestStreamsThatGoOn(t *testing.T) {
	hungUp := make(chan struct{})
	service := detaching(t, func(ctx context.Context, e *sandbox.Detached) (sandbox.Result, error) {
		e.Started()
		e.Refused(decisions.Summary{Name: "a.org", Verdict: decisions.Denied, Via: decisions.DNS, Reason: "x", Count: 1})
		_ = e.Output(ctx, dockerexec.Stderr, []byte("before"))
		<-hungUp
		_ = e.Output(ctx, dockerexec.Stdout, []byte("after"))
		return ended(5), nil
	})
	server := serveFake(t, service)
	body := post(t, server.URL, ndjson, `{"command":"x","detachOnDisconnect":true}`)
	lines := bufio.NewReader(body)
	var first types.Event
	for i, want := range []string{`"start"`, `"a.org"`, `"before"`} {
		line, err := lines.ReadString('\n')
		if err != nil || !strings.Contains(line, want) {
			t.Fatalf("%q, %v", line, err)
		}
		if i == 0 {
			if err := json.Unmarshal([]byte(line), &first); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = body.Close()
	close(hungUp)
	if _, err := service.DetachedExec("a", first.ExecID); err != nil {
		t.Fatal(err)
	}
	c := reattachTo(t, server, first.ExecID, "")
	c.expect(types.EventStart)
	event, binary := c.hear()
	for event.Type == types.EventStdin || event.Type == types.EventEgress {
		event, binary = c.hear()
	}
	if string(binary) != "\x02before" {
		t.Errorf("%q", binary)
	}
	c.prints("\x01after")
	if exit := c.last(types.EventExit); *exit.Result.ExitCode != 5 {
		t.Errorf("%+v", exit)
	}
}

func TestStreamOfADetachedExec(t *testing.T) {
	server := serveFake(t, detaching(t, func(ctx context.Context, e *sandbox.Detached) (sandbox.Result, error) {
		e.Started()
		_ = e.Output(ctx, dockerexec.Stdout, []byte("a\xe2"))
		_ = e.Output(ctx, dockerexec.Stdout, []byte("\x82\xac"))
		return ended(0), nil
	}))
	var got []string
	for _, event := range readEvents(t, post(t, server.URL, ndjson, `{"command":"x","detachOnDisconnect":true}`)) {
		got = append(got, string(event.Type)+" "+event.Data)
	}
	if text := strings.Join(got, ","); strings.Replace(text, ",stdout €", "€", 1) != "start ,stdout a€,exit " {
		t.Errorf("%q", text)
	}
}

func detachedExchanges(t *testing.T) []exchange {
	const exec, execs = "POST /v1/sandboxes/agent-7/exec", "GET /v1/sandboxes/agent-7/execs"
	const body = `{"command":"x","detachOnDisconnect":true}`
	running, killed := detaching(t, echoes), detaching(t, echoes)
	start := func(service *fakeService) string {
		e, err := service.StartExec(t.Context(), "", sandbox.Request{Command: "cat"}, true)
		if err != nil {
			t.Fatal(err)
		}
		return execs + "/" + e.ID
	}
	there, toKill := start(running), start(killed)
	failed := detaching(t, func(_ context.Context, e *sandbox.Detached) (sandbox.Result, error) {
		e.Started()
		return sandbox.Result{}, dockerexec.ErrSession
	})
	execID := strings.TrimPrefix(start(failed), execs+"/")
	if e, err := failed.DetachedExec("", execID); err != nil || e.Kill(t.Context()) != nil { // waits for its end
		t.Fatal(err)
	}
	post := func(route string) string { return strings.Replace(route, "GET", "POST", 1) }
	ends := detaching(t, func(_ context.Context, e *sandbox.Detached) (sandbox.Result, error) {
		e.Started()
		return ended(1), nil
	})
	refuses := detaching(t, func(context.Context, *sandbox.Detached) (sandbox.Result, error) {
		return sandbox.Result{}, classed(cerrdefs.ErrPermissionDenied)
	})
	busy := fakeService{fakeDetached: fakeDetached{startErr: classed(cerrdefs.ErrResourceExhausted)}}
	return []exchange{
		{name: "goes on", route: exec, body: body, accept: ndjson, service: *ends, status: 200},
		{name: "goes on, but is refused", route: exec, body: body, accept: ndjson, service: *refuses, status: 403},
		{name: "one too many", route: exec, body: body, accept: ndjson, service: busy, status: 429},
		{name: "buffered", route: exec, body: body, status: 400},

		{name: "none", route: execs, service: *detaching(t, nil), status: 200},
		{name: "one", route: execs, service: *running, status: 200},
		{name: "one that has failed", route: execs, service: *failed, status: 200},

		{name: "no WebSocket", route: there, service: *running, status: 400, breaks: true},
		{name: "not there", route: execs + "/x-1", service: *running, status: 404, breaks: true},
		{name: "no offset", route: there + "?offset=-1", service: *running, status: 400, breaks: true},
		{name: "unknown parameter", route: there + "?from=1", service: *running, status: 400, breaks: true},

		{name: "killed", route: post(toKill) + "/kill", body: "{}", service: *killed, status: 200},
		{name: "killed again", route: post(toKill) + "/kill", service: *killed, status: 200},
		{name: "nobody to kill", route: post(execs) + "/x-1/kill", service: *running, status: 404},
		{name: "how to kill", route: post(there) + "/kill", body: `{"signal":"KILL"}`, service: *running, status: 400, breaks: true},
	}
}

func TestWhoWatchesSeesItKilled(t *testing.T) {
	service := detaching(t, echoes)
	c := attachTo(t, serveFake(t, service), `{"command":"cat","detachOnDisconnect":true}`)
	e, err := service.DetachedExec("a", c.expect(types.EventStart).ExecID)
	if err != nil || e.Kill(t.Context()) != nil {
		t.Fatal(err)
	}
	if exit := c.last(types.EventExit); exit.Result.Signal == nil || *exit.Result.Signal != "SIGKILL" {
		t.Errorf("%+v", exit)
	}
}

// What looks like a WebSocket, and is none, is answered as any other bad request, and the command goes on.
func TestUpgradesThatFail(t *testing.T) {
	service := detaching(t, echoes)
	server := serveFake(t, service)
	e, err := service.StartExec(t.Context(), "a", sandbox.Request{Command: "cat"}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range []string{"/v1/sandboxes/a/exec", "/v1/sandboxes/a/execs/" + e.ID} {
		for name, change := range map[string]func(http.Header){
			"no upgrade":      func(h http.Header) { h.Set("Connection", "keep-alive") },
			"another version": func(h http.Header) { h.Set("Sec-WebSocket-Version", "8") },
			"no key":          func(h http.Header) { h.Del("Sec-WebSocket-Key") },
			"a bad key":       func(h http.Header) { h.Set("Sec-WebSocket-Key", "?") },
		} {
			t.Run(name+" "+route, func(t *testing.T) {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+route, nil)
				if err != nil {
					t.Fatal(err)
				}
				for key, value := range map[string]string{
					"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
				} {
					req.Header.Set(key, value)
				}
				change(req.Header)
				failure, status := refused(t, req)
				if status != http.StatusBadRequest || failure.Kind != types.Invalid || !strings.HasPrefix(failure.Message, "cannot open a WebSocket") {
					t.Errorf("%d %+v", status, failure)
				}
			})
		}
	}
	if status := e.Status(); status.Attached || !status.Ended.IsZero() {
		t.Errorf("%+v", status)
	}
}
