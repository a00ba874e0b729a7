package api

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/warm"
)

// pauses makes a command that is silent for two and a half times as long as a stream may be, in the middle of which it
// is refused a name.
func pauses(d *desk) runFunc {
	return func(_ context.Context, spec dockerexec.Spec, c warm.Command, out session.Output) (warm.Result, error) {
		c.Started()
		time.Sleep(keepAlive + keepAlive/4)
		d.Refuse(spec, decisions.Decision{Name: "a.org", Verdict: decisions.Denied, Via: decisions.DNS, Reason: "x"})
		time.Sleep(keepAlive + keepAlive/4)
		return warm.Result{}, out(session.Stdout, []byte("done"))
	}
}

// heard is what pauses makes its caller hear.
var heard = []string{"start", "keepalive", "egress", "keepalive", "stdout", "exit"}

func TestSilentExecIsKeptAlive(t *testing.T) {
	atDesk(t, pauses, func(d *desk) {
		conn, far := net.Pipe()
		d.at.conns <- far
		if _, err := fmt.Fprintf(conn, "POST /v1/sandboxes/a/exec HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", ndjson, len(reaching), reaching); err != nil {
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
	atDesk(t, pauses, func(d *desk) {
		t := d.t // of a time of its own
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
		c.say(reaching)
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

// An event that comes too late must not touch an answer that has ended.
func TestNothingComesAfterTheEnd(t *testing.T) {
	out := httptest.NewRecorder()
	stream := newEventStream(&server{}, out, httptest.NewRequest(http.MethodPost, "/", nil))
	for range 2 {
		if err := stream.send(types.Event{Type: types.EventStart}); err != nil {
			t.Error(err)
		}
		stream.close()
	}
	if text := out.Body.String(); strings.Count(text, "\n") != 1 {
		t.Errorf("%q", text)
	}
}

// Frames carry output unchanged, and the same events.
func TestFrames(t *testing.T) {
	server := newLab(t, prints(warm.Result{Result: session.Result{CommandFault: "fault"}}, nil, "1:a\xe2", "2:\x00\xff", "1:\x82\xac")).serve()
	body := post(t, server.URL, types.Frames, `{"command":"x"}`)
	defer func() { _ = body.Close() }()
	var got []string
	for header := make([]byte, types.FrameHeader); ; {
		if _, err := io.ReadFull(body, header); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, binary.BigEndian.Uint32(header[4:]))
		if _, err := io.ReadFull(body, frame); err != nil {
			t.Fatal(err)
		}
		var event types.Event
		if header[0] == types.ChannelEvent {
			if err := json.Unmarshal(frame, &event); err != nil {
				t.Fatal(err)
			}
			frame = []byte(event.Type)
		}
		got = append(got, string(header[:4])+string(frame))
	}
	want := []string{"\x03\x00\x00\x00start", "\x01\x00\x00\x00a\xe2", "\x02\x00\x00\x00\x00\xff", "\x01\x00\x00\x00\x82\xac", "\x02\x00\x00\x00fault\n", "\x03\x00\x00\x00exit"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}
