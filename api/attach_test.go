package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

func TestAttachedOutputIsByteExact(t *testing.T) {
	server := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, out session.Output) (warm.Result, error) {
		if c.MaxOutput != 0 {
			return warm.Result{}, fmt.Errorf("output is limited to %d", c.MaxOutput)
		}
		return warm.Result{Result: session.Result{ExitCode: 126, CommandFault: "fault"}},
			firstError(out(session.Stdout, []byte("a\xe2")), out(session.Stderr, []byte{0, 0xff}), out(session.Stdout, []byte("\x82\xac")))
	})).serve()
	c := attachTo(t, server, `{"command":"x"}`)
	c.expect(types.EventStart)
	for _, want := range []string{"\x01a\xe2", "\x02\x00\xff", "\x01\x82\xac", "\x02fault\n"} {
		if event, got := c.hear(); string(got) != want {
			t.Errorf("%q %+v, want %q", got, event, want)
		}
	}
	if exit := c.last(types.EventExit); exit.Result == nil || *exit.Result.ExitCode != 126 {
		t.Errorf("%+v", exit)
	}
}

// TestStdinLargerThanTheWindow sends as much as it may, again and again, to a command that reads.
func TestStdinLargerThanTheWindow(t *testing.T) {
	total := 5*types.StdinWindow + 17
	sent := bytes.Repeat([]byte("0123456789abcde"), total/15+1)[:total]
	same := make(chan bool, 1)
	server := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, _ session.Output) (warm.Result, error) {
		got, err := io.ReadAll(c.Stdin)
		same <- bytes.Equal(got, sent)
		return warm.Result{}, err
	})).serve()
	c := attachTo(t, server, `{"command":"cat"}`)
	c.expect(types.EventStart)
	for credit, rest := types.StdinWindow, sent; ; {
		n := min(credit, len(rest))
		c.feed(rest[:n])
		credit, rest = credit-n, rest[n:]
		if len(rest) == 0 {
			break
		}
		event := c.expect(types.EventStdin)
		if credit += event.Bytes; event.Bytes <= 0 || credit > types.StdinWindow {
			t.Fatalf("%d bytes taken", event.Bytes)
		}
	}
	c.say(`{"type":"eof"}`)
	event, _ := c.hear()
	for event.Type == types.EventStdin {
		event, _ = c.hear()
	}
	if event.Type != types.EventExit || !<-same {
		t.Errorf("%+v", event)
	}
}

// TestSignalsPassStdinThatIsStuck fills the window of a command that reads nothing.
func TestSignalsPassStdinThatIsStuck(t *testing.T) {
	server := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, _ session.Output) (warm.Result, error) {
		first, second := <-c.Signals, <-c.Signals
		if first != syscall.SIGINT {
			return warm.Result{}, fmt.Errorf("got %v first", first)
		}
		return warm.Result{Result: session.Result{Signal: second}}, nil
	})).serve()
	c := attachTo(t, server, `{"command":"sleep 100"}`)
	c.expect(types.EventStart)
	c.feed(make([]byte, types.StdinWindow))
	c.say(`{"type":"signal","signal":"INT"}`)
	c.say(`{"type":"signal","signal":"SIGTERM"}`)
	if exit := c.last(types.EventExit); *exit.Result.Signal != "SIGTERM" {
		t.Errorf("%+v", exit.Result)
	}
}

func TestStdinOfTheFirstMessageIsTheWhole(t *testing.T) {
	server := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, out session.Output) (warm.Result, error) {
		got, err := io.ReadAll(c.Stdin)
		return warm.Result{}, firstError(err, out(session.Stdout, got))
	})).serve()
	c := attachTo(t, server, `{"command":"cat","stdin":"AP8=","stdinEncoding":"base64"}`)
	c.expect(types.EventStart)
	if _, got := c.hear(); string(got) != "\x01\x00\xff" {
		t.Errorf("%q", got)
	}
	c.last(types.EventExit)
}

// An empty stdin is a whole one, too: the command reads /dev/null instead of waiting for messages.
func TestStdinOfTheFirstMessageMayBeEmpty(t *testing.T) {
	server := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, _ session.Output) (warm.Result, error) {
		if c.Stdin != nil {
			return warm.Result{Result: session.Result{ExitCode: 1}}, nil
		}
		return warm.Result{}, nil
	})).serve()
	for _, first := range []string{
		`{"command":"cat","stdin":""}`, `{"command":"cat","stdin":"","stdinEncoding":"base64"}`, `{"command":"cat","stdin":"","detachOnDisconnect":true}`,
		`{"command":"cat","stdin":"","tty":{}}`, `{"command":"cat","stdinEncoding":"base64"}`,
	} {
		c := attachTo(t, server, first)
		c.expect(types.EventStart)
		if exit := c.last(types.EventExit); *exit.Result.ExitCode != 0 {
			t.Errorf("%s: %+v", first, exit.Result)
		}
	}
}

func TestTerminalsHaveASize(t *testing.T) {
	for _, tt := range []struct {
		first string
		want  specs.Box
	}{
		{`{"command":"top","tty":{}}`, specs.Box{Height: 24, Width: 80}},
		{`{"command":"top","tty":{"cols":132}}`, specs.Box{Height: 24, Width: 132}},
		{`{"command":"top","tty":{"rows":1,"cols":10000}}`, specs.Box{Height: 1, Width: 10000}},
	} {
		server := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, _ session.Output) (warm.Result, error) {
			if !c.Terminal || *c.ConsoleSize != tt.want {
				return warm.Result{}, fmt.Errorf("the terminal is %t %v", c.Terminal, c.ConsoleSize)
			}
			return warm.Result{}, nil
		})).serve()
		c := attachTo(t, server, tt.first)
		c.expect(types.EventStart)
		c.last(types.EventExit)
	}
}

// TestTheLatestSizeCounts sends sizes while the command takes none.
func TestTheLatestSizeCounts(t *testing.T) {
	ready := make(chan struct{})
	server := newLab(t, sandboxtest.Started(func(_ context.Context, c warm.Command, _ session.Output) (warm.Result, error) {
		<-c.Signals // sent after the sizes
		close(ready)
		if size := <-c.Resizes; size != (specs.Box{Height: 3, Width: 4}) {
			return warm.Result{}, fmt.Errorf("the size is %v", size)
		}
		return warm.Result{}, nil
	})).serve()
	c := attachTo(t, server, `{"command":"top","tty":{}}`)
	c.expect(types.EventStart)
	c.say(`{"type":"resize","rows":1,"cols":2}`)
	c.say(`{"type":"resize","rows":3,"cols":4}`)
	c.say(`{"type":"signal","signal":"WINCH"}`)
	<-ready
	c.last(types.EventExit)
}

func TestHangUpEndsTheAttachedCommand(t *testing.T) {
	for name, hangUp := range map[string]func(*caller) error{
		"properly":    func(c *caller) error { return c.conn.Close(websocket.StatusNormalClosure, "") },
		"by a cut":    func(c *caller) error { return c.conn.CloseNow() },
		"after stdin": func(c *caller) error { c.say(`{"type":"eof"}`); return c.conn.CloseNow() },
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			server := newLab(t, sandboxtest.Started(func(ctx context.Context, _ warm.Command, _ session.Output) (warm.Result, error) {
				<-ctx.Done()
				close(over)
				return warm.Result{}, context.Cause(ctx)
			})).serve()
			c := attachTo(t, server, `{"command":"sleep 100"}`)
			c.expect(types.EventStart)
			_ = hangUp(c) // the other end may be the first to close
			<-over
		})
	}
}

func TestBadFirstMessages(t *testing.T) {
	server := newLab(t, nil).serve()
	for _, tt := range []struct{ name, first, message string }{
		{"no JSON", "ls", "not JSON"},
		{"empty", "", "empty"},
		{"unknown key", `{"cmd":"ls"}`, "cmd: unknown key"},
		{"bad stdin", `{"command":"ls","stdinEncoding":"hex"}`, "stdinEncoding"},
		{"no rows", `{"command":"ls","tty":{"rows":0}}`, "tty.rows 0 is not from 1 to 10000"},
		{"too many columns", `{"command":"ls","tty":{"cols":10001}}`, "tty.cols 10001 is not from 1 to 10000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			failure := attachTo(t, server, tt.first).last(types.EventError).Error
			if failure.Kind != types.Invalid || !strings.Contains(failure.Message, tt.message) {
				t.Errorf("%+v", failure)
			}
		})
	}
	t.Run("binary", func(t *testing.T) {
		conn, _, err := websocket.Dial(t.Context(), server.URL+"/v1/sandboxes/a/exec", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.CloseNow() }()
		c := &caller{t: t, conn: conn}
		c.feed([]byte(`{"command":"ls"}`))
		if failure := c.last(types.EventError).Error; failure.Kind != types.Invalid {
			t.Errorf("%+v", failure)
		}
	})
}

// TestBadInputs sends what breaks the rules to a command that runs: it ends, and the caller is told.
func TestBadInputs(t *testing.T) {
	for _, tt := range []struct {
		name, message string
		send          func(*caller)
	}{
		{"unknown type", `input of unknown type "close"`, func(c *caller) { c.say(`{"type":"close"}`) }},
		{"unknown key", "width: unknown key", func(c *caller) { c.say(`{"type":"eof","width":1}`) }},
		{"no size", "rows 0 is not from 1 to 10000", func(c *caller) { c.say(`{"type":"resize"}`) }},
		{"a size that is too large", "cols 10001 is not from 1 to 10000", func(c *caller) { c.say(`{"type":"resize","rows":1,"cols":10001}`) }},
		{"a size without a terminal", "started without tty", func(c *caller) { c.say(`{"type":"resize","rows":1,"cols":1}`) }},
		{"unknown signal", `signal "SEGV"`, func(c *caller) { c.say(`{"type":"signal","signal":"SEGV"}`) }},
		{"no JSON", "not JSON", func(c *caller) { c.say(`eof`) }},
		{"more stdin than was taken", "1048576 bytes", func(c *caller) {
			c.feed(make([]byte, types.StdinWindow))
			c.feed([]byte("x"))
		}},
		{"another channel", "channel of stdin", func(c *caller) {
			_ = c.conn.Write(c.t.Context(), websocket.MessageBinary, []byte("\x01x"))
		}},
		{"no channel", "channel of stdin", func(c *caller) {
			_ = c.conn.Write(c.t.Context(), websocket.MessageBinary, nil)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := newLab(t, lasts()).serve()
			c := attachTo(t, server, `{"command":"sleep 100"}`)
			c.expect(types.EventStart)
			tt.send(c)
			failure := c.last(types.EventError).Error
			if failure.Kind != types.Invalid || !strings.Contains(failure.Message, tt.message) {
				t.Errorf("%+v", failure)
			}
		})
	}
}

func TestMessageOverTheLimitClosesTheConnection(t *testing.T) {
	server := newLab(t, nil).serve()
	c := attachTo(t, server, `{"command":"`+strings.Repeat("a", testMaxRequest)+`"}`)
	if _, _, err := c.conn.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Error(err)
	}
}
