package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

func TestBufferedOutput(t *testing.T) {
	for _, tt := range []struct {
		name           string
		run            runFunc
		stdout, stderr string
		base64         bool // stderr is
	}{
		{"both streams, mixed", prints(warm.Result{}, nil, "1:a", "2:b", "1:c"), "ac", "b", false},
		{"without a newline", prints(warm.Result{}, nil, "1:a\r\nb"), "a\r\nb", "", false},
		{"a fault comes after what was printed", prints(warm.Result{Result: session.Result{CommandFault: "x: no"}}, nil, "2:!\n"), "", "!\nx: no\n", false},
		// Half of testMaxOutput bytes are kept of each end.
		{"cut in a character", prints(warm.Result{}, nil, "1:123€xx€78"), "12378", "", false},
		{"only stdout is cut", prints(warm.Result{}, nil, "1:1234xx", "1:5678", "2:a\xe2\x82"), "12345678", "YeKC", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := newLab(t, tt.run).serve()
			body := post(t, server.URL, "", `{"command":"x"}`)
			defer func() { _ = body.Close() }()
			var got types.Output
			if err := json.NewDecoder(body).Decode(&got); err != nil {
				t.Fatal(err)
			}
			if got.Stdout != tt.stdout || got.Stderr != tt.stderr || (got.StderrEncoding == types.Base64) != tt.base64 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// post sends an exec and returns the body of its answer.
func post(t *testing.T, url, accept, body string) io.ReadCloser {
	t.Helper()
	x := exchange{route: "POST /v1/sandboxes/a/exec", body: body, accept: accept}
	response, err := http.DefaultClient.Do(x.request(t, url))
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		t.Fatalf("status %d", response.StatusCode)
	}
	return response.Body
}

// An answer says how much is left out, and where.
func TestTheAnswerTellsWhatIsLeftOut(t *testing.T) {
	server := newLab(t, prints(warm.Result{}, nil, "1:1234xxx5678", "2:b")).serve()
	body := post(t, server.URL, "", `{"command":"x"}`)
	defer func() { _ = body.Close() }()
	var got types.Output
	if err := json.NewDecoder(body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&types.Cut{At: 4, Bytes: 3}, got.StdoutCut); diff != "" || !got.Truncated || got.StderrCut != nil {
		t.Errorf("%s %+v", diff, got)
	}
}

func TestStreamedEvents(t *testing.T) {
	zero := 0
	for _, tt := range []struct {
		name string
		run  runFunc
		want []types.Event
	}{
		{"in the order in which it came", prints(warm.Result{}, nil, "1:a", "2:b", "1:c"), []types.Event{
			{Type: "stdout", Data: "a"}, {Type: "stderr", Data: "b"}, {Type: "stdout", Data: "c"}}},
		{"a character that is split waits for its end", prints(warm.Result{}, nil, "1:a\xe2", "2:b", "1:\x82", "1:\xac"), []types.Event{
			{Type: "stdout", Data: "a"}, {Type: "stderr", Data: "b"}, {Type: "stdout", Data: "€"}}},
		{"one that never ends comes last", prints(warm.Result{}, nil, "1:\xe2\x82", "2:b"), []types.Event{
			{Type: "stderr", Data: "b"}, {Type: "stdout", Data: "4oI=", Encoding: types.Base64}}},
		{"bytes", prints(warm.Result{}, nil, "1:\x00\xff"), []types.Event{
			{Type: "stdout", Data: "AP8=", Encoding: types.Base64}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := newLab(t, tt.run).serve()
			events := readEvents(t, post(t, server.URL, ndjson, `{"command":"x"}`))
			want := append([]types.Event{{Type: "start"}}, tt.want...)
			want = append(want, types.Event{Type: "exit", Result: &types.Result{ExitCode: &zero, Cwd: "/home", Egress: []types.Refusal{}, Hints: []types.Hint{}}})
			if diff := cmp.Diff(want, events, cmpopts.IgnoreFields(types.Result{}, "DurationMs")); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

func readEvents(t *testing.T, body io.ReadCloser) []types.Event {
	t.Helper()
	defer func() { _ = body.Close() }()
	var events []types.Event
	for lines := bufio.NewScanner(body); lines.Scan(); {
		var e types.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.Type == types.EventStart {
			if !strings.HasPrefix(e.ExecID, "x-") {
				t.Errorf("a start with the id %q", e.ExecID)
			}
			e.ExecID = ""
		}
		events = append(events, e)
	}
	return events
}

func TestStreamThatFailsEndsWithAnError(t *testing.T) {
	server := newLab(t, prints(warm.Result{}, errors.New("the engine has gone"), "1:a")).serve()
	events := readEvents(t, post(t, server.URL, ndjson, `{"command":"x"}`))
	events[len(events)-1].Error.RequestID = "" // which is the stream's
	want := []types.Event{
		{Type: "start"}, {Type: "stdout", Data: "a"},
		{Type: "error", Error: &types.Error{Kind: types.Engine, Message: "the engine has gone"}},
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// An event is sent when it happens: the command here waits until its caller has seen the last one.
func TestStreamIsFlushedEventByEvent(t *testing.T) {
	seen := make(chan struct{})
	server := newLab(t, sandboxtest.Started(func(_ context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
		<-seen
		err := out(session.Stdout, []byte("a"))
		<-seen
		return warm.Result{}, err
	})).serve()
	body := post(t, server.URL, ndjson, `{"command":"x"}`)
	defer func() { _ = body.Close() }()
	lines := bufio.NewReader(body)
	for _, want := range []string{"start", "stdout"} {
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, want) {
			t.Fatalf("%q, %v", line, err)
		}
		seen <- struct{}{}
	}
}

func TestHangUpEndsTheCommand(t *testing.T) {
	for _, accept := range []string{"", ndjson} {
		begun, over := make(chan struct{}), make(chan error)
		server := newLab(t, func(ctx context.Context, _ dockerexec.Spec, _ warm.Command, _ session.Output) (warm.Result, error) {
			close(begun)
			<-ctx.Done()
			over <- ctx.Err()
			return warm.Result{}, ctx.Err()
		}).serve()
		ctx, hangUp := context.WithCancel(t.Context())
		x := exchange{route: "POST /v1/sandboxes/a/exec", body: `{"command":"x"}`, accept: accept}
		go func() {
			<-begun
			hangUp()
		}()
		if response, err := http.DefaultClient.Do(x.request(t, server.URL).WithContext(ctx)); err == nil {
			_ = response.Body.Close()
			t.Fatal("a call that was cancelled has an answer")
		}
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// A signal finds the command of a streamed exec by its sandbox and id.
func TestSignalsOfStreamedExecs(t *testing.T) {
	l := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, _ session.Output) (warm.Result, error) {
		return warm.Result{Result: session.Result{Signal: <-c.Signals}}, nil
	}))
	server := l.serve()
	l.Register("b")
	body := post(t, server.URL, ndjson, `{"command":"sleep 100"}`)
	defer func() { _ = body.Close() }()
	lines := bufio.NewReader(body)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var start types.Event
	if err := json.Unmarshal([]byte(line), &start); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		sandbox string
		status  int
	}{{"b", http.StatusNotFound}, {"none", http.StatusNotFound}, {"a", http.StatusNoContent}} {
		x := exchange{route: "POST /v1/sandboxes/" + tt.sandbox + "/execs/" + start.ExecID + "/signal", body: `{"signal":"INT"}`}
		response, err := http.DefaultClient.Do(x.request(t, server.URL))
		if err != nil || response.StatusCode != tt.status {
			t.Errorf("%s: %v, %v", tt.sandbox, response, err)
		}
	}
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, `"SIGINT"`) {
		t.Errorf("%q, %v", line, err)
	}
}

// TestOutputThatIsNotTakenHasAShare has a caller run commands that print much and read no answer: when the
// answers fill its share of the memory, the next one's output is cut, and says so.
func TestOutputThatIsNotTakenHasAShare(t *testing.T) {
	chunk := bytes.Repeat([]byte("x"), 16<<20)
	l := newLab(t, func(_ context.Context, _ dockerexec.Spec, _ warm.Command, out session.Output) (warm.Result, error) {
		return warm.Result{}, out(session.Stdout, chunk)
	})
	cfg := l.config()
	cfg.MaxOutput = int64(len(chunk))
	server := httptest.NewServer(New(l.Service, cfg))
	t.Cleanup(server.Close)
	const most = 8 // of a quarter of all
	for n := range most + 1 {
		answer := untaken(t, server, "exec", `{"command":"prints"}`)
		if answer.StatusCode != http.StatusOK {
			t.Fatal(answer.Status)
		}
		if n < most {
			continue
		}
		var got types.Output
		if err := json.NewDecoder(answer.Body).Decode(&got); err != nil || !got.Truncated || got.Stdout != "" || got.StdoutCut == nil || got.StdoutCut.Bytes != int64(len(chunk)) || got.ExitCode == nil {
			t.Errorf("%+v, %v", got.Result, err)
		}
	}
}
