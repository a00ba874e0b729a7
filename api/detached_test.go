package api

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/attach"
)

// echoes is a command that prints its stdin, and ends with a signal or its stdin.
func echoes() runFunc {
	return sandboxtest.Started(func(ctx context.Context, c warm.Command, out session.Output) (warm.Result, error) {
		read := make(chan error, 1)
		go func() {
			buffer := make([]byte, 1000)
			for {
				n, err := c.Stdin.Read(buffer)
				if n > 0 {
					_ = out(session.Stdout, buffer[:n])
				}
				if err != nil {
					read <- err
					return
				}
			}
		}()
		select {
		case signal := <-c.Signals:
			return warm.Result{Result: session.Result{Signal: signal}}, nil
		case <-read:
			return warm.Result{Result: session.Result{ExitCode: 3}}, nil
		case <-ctx.Done():
			return warm.Result{}, context.Cause(ctx)
		}
	})
}

// detach starts a command that goes on without its caller.
func (l *lab) detach() *attach.Exec[sandbox.Result] {
	l.T.Helper()
	e, err := l.StartExec(context.Background(), "a", sandbox.Request{Command: "cat"}, true)
	if err != nil {
		l.T.Fatal(err)
	}
	return e
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
	server := newLab(t, echoes()).serve()
	c := attachTo(t, server, `{"command":"cat","detachOnDisconnect":true}`)
	id := c.expect(types.EventStart).ExecID
	c.feed([]byte("one "))
	c.expect(types.EventStdin)
	c.prints("\x01one ")
	_ = c.conn.CloseNow()

	c = reattachTo(t, server, id, "")
	if start := c.expect(types.EventStart); start.ExecID != id {
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

// A stream's caller goes, and comes back over a WebSocket after the command has ended.
func TestStreamsThatGoOn(t *testing.T) {
	hungUp, refused := make(chan struct{}), make(chan struct{})
	var l *lab
	l = newLab(t, func(_ context.Context, spec dockerexec.Spec, c warm.Command, out session.Output) (warm.Result, error) {
		c.Started()
		l.Refuse(spec, decisions.Decision{Name: "a.org", Verdict: decisions.Denied, Via: decisions.DNS, Reason: "x"})
		<-refused
		_ = out(session.Stderr, []byte("before"))
		<-hungUp
		return warm.Result{Result: session.Result{ExitCode: 5}}, out(session.Stdout, []byte("after"))
	})
	server := l.serve()
	body := post(t, server.URL, ndjson, strings.Replace(reaching, "{", `{"detachOnDisconnect":true,`, 1))
	lines := bufio.NewReader(body)
	var first types.Event
	for i, want := range []string{`"start"`, `"a.org"`, `"before"`} {
		line, err := lines.ReadString('\n')
		if err != nil || !strings.Contains(line, want) {
			t.Fatalf("%q, %v", line, err)
		}
		if i == 1 {
			close(refused)
		}
		if i == 0 {
			if err := json.Unmarshal([]byte(line), &first); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = body.Close()
	close(hungUp)
	if _, err := l.DetachedExec("a", first.ExecID); err != nil {
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
	server := newLab(t, prints(warm.Result{}, nil, "1:a\xe2", "1:\x82\xac")).serve()
	var got []string
	for _, event := range readEvents(t, post(t, server.URL, ndjson, `{"command":"x","detachOnDisconnect":true}`)) {
		got = append(got, string(event.Type)+" "+event.Data)
	}
	if text := strings.Join(got, ","); strings.Replace(text, ",stdout €", "€", 1) != "start ,stdout a€,exit " {
		t.Errorf("%q", text)
	}
}

// TestOffsetsOfAStream cuts a caller off while a character of stdout is incomplete and stderr has come after it: what
// the caller has by then is the beginning of the output, so it comes back with the number of these bytes.
func TestOffsetsOfAStream(t *testing.T) {
	hungUp := make(chan struct{})
	server := newLab(t, sandboxtest.Started(func(_ context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
		err := firstError(out(session.Stdout, []byte("a\xc3")), out(session.Stderr, []byte("e\n")))
		<-hungUp
		return warm.Result{}, firstError(err, out(session.Stdout, []byte("\xa9")))
	})).serve()
	body := post(t, server.URL, ndjson, `{"command":"x","detachOnDisconnect":true}`)
	var id string
	var got []string
	offset := 0
	for events := bufio.NewScanner(body); len(got) == 0 || got[len(got)-1] != "stderr e\n"; {
		if !events.Scan() {
			t.Fatalf("the stream has ended after %q: %v", got, events.Err())
		}
		var event types.Event
		if err := json.Unmarshal(events.Bytes(), &event); err != nil {
			t.Fatal(err)
		}
		if event.Type == types.EventStart {
			id = event.ExecID
			continue
		}
		data, err := decodeBytes("data", event.Data, event.Encoding)
		if err != nil {
			t.Fatal(err)
		}
		offset += len(data)
		got = append(got, string(event.Type)+" "+string(data))
	}
	_ = body.Close()
	close(hungUp)
	if text := strings.Join(got, ","); text != "stdout a,stdout \xc3,stderr e\n" {
		t.Errorf("%q", text)
	}
	c := reattachTo(t, server, id, fmt.Sprint("?offset=", offset))
	c.expect(types.EventStart)
	event, binary := c.hear()
	for event.Type == types.EventStdin {
		event, binary = c.hear()
	}
	if string(binary) != "\x01\xa9" {
		t.Errorf("%q %+v", binary, event)
	}
	c.last(types.EventExit)
}

func detachedExchanges(t *testing.T) []exchange {
	const exec, execs = "POST /v1/sandboxes/agent-7/exec", "GET /v1/sandboxes/agent-7/execs"
	const body = `{"command":"x","detachOnDisconnect":true}`
	running, none := newLab(t, echoes()), newLab(t, prints(warm.Result{Result: session.Result{ExitCode: 1}}, nil))
	there, toKill := execs+"/"+running.detach().ID, execs+"/"+running.detach().ID
	told := newLab(t, echoes())
	toTell := execs + "/" + told.detach().ID
	failed := newLab(t, prints(warm.Result{}, session.ErrBroken))
	if err := failed.detach().Kill(t.Context()); err != nil { // waits for its end
		t.Fatal(err)
	}
	busy := newLab(t, echoes(), bounded(quota.Bounds{DetachedExecs: 1}))
	busy.detach()
	post := func(route string) string { return strings.Replace(route, "GET", "POST", 1) }
	return []exchange{
		{name: "goes on", route: exec, body: body, accept: ndjson, lab: newLab(t, prints(warm.Result{Result: session.Result{ExitCode: 1}}, nil)), status: 200},
		{name: "goes on, but is refused", route: exec, body: strings.Replace(body, "{", `{"permissions":["@events"],`, 1), accept: ndjson, lab: running, status: 403},
		{name: "one too many", route: exec, body: body, accept: ndjson, lab: busy, status: 429},
		{name: "buffered", route: exec, body: body, lab: running, status: 400},

		{name: "none", route: execs, lab: none, status: 200},
		{name: "one", route: execs, lab: running, status: 200},
		{name: "one that has failed", route: execs, lab: failed, status: 200},

		{name: "no WebSocket", route: there, lab: running, status: 400, breaks: true},
		{name: "not there", route: execs + "/x-1", lab: running, status: 404, breaks: true},
		{name: "no offset", route: there + "?offset=-1", lab: running, status: 400, breaks: true},
		{name: "unknown parameter", route: there + "?from=1", lab: running, status: 400, breaks: true},

		{name: "killed", route: post(toKill) + "/kill", body: "{}", lab: running, status: 200},
		{name: "killed again", route: post(toKill) + "/kill", lab: running, status: 200},
		{name: "nobody to kill", route: post(execs) + "/x-1/kill", lab: running, status: 404},
		{name: "a signal", route: post(toTell) + "/signal", body: `{"signal":"SIGUSR1"}`, lab: told, status: 204},
		{name: "nobody to signal", route: post(execs) + "/x-1/signal", body: `{"signal":"INT"}`, lab: running, status: 404},
		{name: "no signal", route: post(there) + "/signal", body: `{"signal":"SEGV"}`, lab: running, status: 400, breaks: true},
		{name: "a signal to kill with", route: post(there) + "/kill", body: `{"signal":"KILL"}`, lab: running, status: 400, breaks: true},
	}
}

// bounded bounds what each user has at a time.
func bounded(bounds quota.Bounds) func(*sandboxtest.Options) {
	return func(o *sandboxtest.Options) {
		o.Config = func(cfg *sandbox.Config) { cfg.Quotas = quota.New(quota.Limits{PerUser: bounds}) }
	}
}

func TestAttachedCallerSeesTheKill(t *testing.T) {
	l := newLab(t, echoes())
	c := attachTo(t, l.serve(), `{"command":"cat","detachOnDisconnect":true}`)
	e, err := l.DetachedExec("a", c.expect(types.EventStart).ExecID)
	if err != nil || e.Kill(t.Context()) != nil {
		t.Fatal(err)
	}
	if exit := c.last(types.EventExit); exit.Result.Signal == nil || *exit.Result.Signal != "SIGKILL" {
		t.Errorf("%+v", exit)
	}
}

// A request that only looks like a WebSocket is answered like any other bad request, and the command goes on.
func TestUpgradesThatFail(t *testing.T) {
	l := newLab(t, echoes())
	server, e := l.serve(), l.detach()
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

// TestDetachedExecsKeepTheirMemory has the caller of a detached command go: what it sent counts until the command ends,
// and not at all where none was started.
func TestDetachedExecsKeepTheirMemory(t *testing.T) {
	running, work := make(chan struct{}), make(chan struct{})
	l := newLab(t, sandboxtest.Started(func(context.Context, warm.Command, session.Output) (warm.Result, error) {
		close(running)
		<-work
		return warm.Result{}, nil
	}))
	m := &middleware{cfg: l.config(), service: l.Service, memory: memoryOf(testMaxRequest)}
	const size = 1 << 20
	ask := func(ctx context.Context, id string) int {
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/exec",
			strings.NewReader(`{"command":"cat","detachOnDisconnect":true,"stdin":"`+strings.Repeat("x", size)+`"}`))
		req.Header.Set("Accept", ndjson)
		req.SetPathValue("id", id)
		out := httptest.NewRecorder()
		m.serve(out, req, route{pattern: "POST /v1/sandboxes/{id}/exec", who: forUsers, handle: (*server).exec})
		return out.Code
	}
	if got := ask(t.Context(), "none"); got != http.StatusNotFound || m.memory.Stats().Used != 0 {
		t.Errorf("none was started: %d, %+v", got, m.memory.Stats())
	}
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-running
		leave()
	}()
	ask(ctx, "a")
	if used := m.memory.Stats().Used; used < size {
		t.Errorf("while it runs without its caller, it has %d bytes", used)
	}
	close(work)
	l.EndDetached()
	if used := m.memory.Stats().Used; used != 0 {
		t.Errorf("after its end it has %d bytes", used)
	}
}
