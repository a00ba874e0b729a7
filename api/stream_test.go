package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// pauses makes the exec of a command that is silent for two and a half times as long as a stream may be, in
// the middle of which it is refused a name.
func pauses(_ context.Context, _ string, r sandbox.Request, out dockerexec.Output) (sandbox.Result, error) {
	r.Started()
	time.Sleep(keepAlive + keepAlive/4)
	r.Refused(decisions.Summary{Name: "a.org", Verdict: decisions.Denied, Via: decisions.DNS, Reason: "x", Count: 1})
	time.Sleep(keepAlive + keepAlive/4)
	return ended(0), out(dockerexec.Stdout, []byte("done"))
}

// heard is what pauses makes its caller hear.
var heard = []string{"start", "keepalive", "egress", "keepalive", "stdout", "exit"}

func TestSilentExecIsKeptAlive(t *testing.T) {
	atDesk(t, func(d *desk) {
		d.service.exec = pauses
		conn, far := net.Pipe()
		d.at.conns <- far
		const body = `{"command":"x"}`
		if _, err := fmt.Fprintf(conn, "POST /v1/sandboxes/a/exec HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", ndjson, len(body), body); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, event := range readEvents(t, response.Body) {
			got = append(got, string(event.Type))
			if event.Type == types.EventEgress && (event.Refusal == nil || event.Refusal.Name != "a.org") {
				t.Errorf("%+v", event)
			}
		}
		if diff := cmp.Diff(heard, got); diff != "" {
			t.Errorf("want (-), got (+):\n%s", diff)
		}
		_ = conn.Close()
	})
}

func TestSilentAttachedExecIsKeptAlive(t *testing.T) {
	atDesk(t, func(d *desk) {
		t := d.t // of a time of its own
		d.service.exec = pauses
		dial := func(context.Context, string, string) (net.Conn, error) {
			conn, far := net.Pipe()
			d.at.conns <- far
			return conn, nil
		}
		conn, _, err := websocket.Dial(t.Context(), "ws://x/v1/sandboxes/a/exec", &websocket.DialOptions{HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial}}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.CloseNow() }()
		c := &caller{t: t, conn: conn}
		c.say(`{"command":"x"}`)
		var got []string
		for range heard {
			event, binary := c.hear()
			if binary != nil {
				event.Type = "stdout"
			}
			got = append(got, string(event.Type))
		}
		if diff := cmp.Diff(heard, got); diff != "" {
			t.Errorf("want (-), got (+):\n%s", diff)
		}
		_, _, _ = conn.Read(t.Context())
	})
}

// What is told too late must not touch an answer that is over.
func TestNothingComesAfterTheEnd(t *testing.T) {
	var late func(decisions.Summary)
	server := serveFake(t, &fakeService{exec: func(_ context.Context, _ string, r sandbox.Request, _ dockerexec.Output) (sandbox.Result, error) {
		r.Started()
		late = r.Refused
		return ended(0), nil
	}})
	body := post(t, server.URL, ndjson, `{"command":"x"}`)
	text, err := io.ReadAll(body)
	if err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("%q %v", text, err)
	}
	_ = body.Close()
	late(decisions.Summary{})
}
