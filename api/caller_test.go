package api

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/coder/websocket"

	"github.com/daycare-run/sandbox/api/types"
)

// caller is the client's end of an attached exec.
type caller struct {
	t    *testing.T
	conn *websocket.Conn
}

// attachTo opens an attached exec and sends its first message.
func attachTo(t *testing.T, server *httptest.Server, first string) *caller {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), server.URL+"/v1/sandboxes/a/exec", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	conn.SetReadLimit(-1)
	c := &caller{t: t, conn: conn}
	c.say(first)
	return c
}

func (c *caller) say(text string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) feed(data []byte) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageBinary, append([]byte{types.ChannelStdin}, data...)); err != nil {
		c.t.Fatal(err)
	}
}

// hear returns the next event, or as binary the next output with its channel.
func (c *caller) hear() (event types.Event, binary []byte) {
	c.t.Helper()
	kind, message, err := c.conn.Read(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	if kind == websocket.MessageBinary {
		return event, message
	}
	if err := json.Unmarshal(message, &event); err != nil {
		c.t.Fatal(err)
	}
	return event, nil
}

// expect hears an event of the given type.
func (c *caller) expect(kind types.EventType) types.Event {
	c.t.Helper()
	event, binary := c.hear()
	if event.Type != kind {
		c.t.Fatalf("heard %+v %q, want %s", event, binary, kind)
	}
	return event
}

// last hears the last event and that the connection ends properly after it.
func (c *caller) last(kind types.EventType) types.Event {
	c.t.Helper()
	event := c.expect(kind)
	if _, _, err := c.conn.Read(c.t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		c.t.Errorf("after the last event: %v", err)
	}
	return event
}
