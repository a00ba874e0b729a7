package session

import (
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/libp2p/go-yamux/v5"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// script is what an agent does once it has a command.
type script = func(*fakeAgent, wire.Start, *yamux.Stream)

// runAgainst runs a command against an agent that does what script says, on a clock of its own.
func runAgainst(
	t *testing.T, c Command, out Output, script script,
) (result Result, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		agent.scripts.Go(func() {
			start, stream := agent.accept()
			script(agent, start, stream)
		})
		result, err = s.Run(t.Context(), c, out)
	})
	return result, err
}

func TestAgentGetsTheCommand(t *testing.T) {
	c := Command{
		Command: launch.Command{
			Process: specs.Process{Args: []string{"a", ""}, Cwd: "/home", Env: []string{"A=1"}},
			Login:   true,
		},
		Stdin: strings.NewReader("input"), MaxOutput: 5, Timeout: time.Hour,
	}
	var got wire.Start
	var stdin []byte
	_, err := runAgainst(t, c, discard, func(a *fakeAgent, start wire.Start, stream *yamux.Stream) {
		got = start
		var err error
		stdin, err = io.ReadAll(stream)
		a.must(err)
		a.exit(stream, wire.Exit{})
	})
	want := wire.Start{Command: c.Command, MaxOutput: 5, Stdin: true}
	if diff := cmp.Diff(want, got); diff != "" || string(stdin) != "input" || err != nil {
		t.Errorf("stdin %q, %v, start: %s", stdin, err, diff)
	}
}

func TestTerminalsAreResized(t *testing.T) {
	resizes := make(chan specs.Box, 1)
	c := aCommand
	c.Terminal, c.ConsoleSize, c.Resizes = true, &specs.Box{Height: 24, Width: 80}, resizes
	var first, then *specs.Box
	_, err := runAgainst(t, c, discard, func(a *fakeAgent, start wire.Start, stream *yamux.Stream) {
		first = start.ConsoleSize
		resizes <- specs.Box{Height: 50, Width: 132}
		then = a.told().Resize
		a.exit(stream, wire.Exit{})
	})
	want := []*specs.Box{{Height: 24, Width: 80}, {Height: 50, Width: 132}}
	if diff := cmp.Diff(want, []*specs.Box{first, then}); diff != "" || err != nil {
		t.Errorf("%v, want (-), got (+):\n%s", err, diff)
	}
}

func TestOutputComesInOrder(t *testing.T) {
	var got []string
	out := func(stream Stream, data []byte) error {
		got = append(got, []string{"out ", "err "}[stream]+string(data))
		return nil
	}
	does := func(a *fakeAgent, _ wire.Start, stream *yamux.Stream) {
		a.print(stream, wire.KindStdout, "1")
		a.print(stream, wire.KindStderr, "2\xff\x00")
		a.print(stream, wire.KindStdout, "")
		a.print(stream, wire.KindStdout, "3")
		a.exit(stream, wire.Exit{Code: 42, Leftovers: []string{"sleep 1"}, MoreLeftovers: 3})
	}
	result, err := runAgainst(t, aCommand, out, does)
	if diff := cmp.Diff([]string{"out 1", "err 2\xff\x00", "out 3"}, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	want := Result{ExitCode: 42, Leftovers: []string{"sleep 1"}, MoreLeftovers: 3}
	if diff := cmp.Diff(want, result); diff != "" || err != nil {
		t.Errorf("%v, want (-), got (+):\n%s", err, diff)
	}
}

// TestAgentThatLiesAboutItsLimit sends more than it may: the service cuts each stream itself.
func TestAgentThatLiesAboutItsLimit(t *testing.T) {
	var sent [2]strings.Builder
	c := aCommand
	c.MaxOutput = 5
	keep := func(stream Stream, data []byte) error { sent[stream].Write(data); return nil }
	result, err := runAgainst(t, c, keep,
		func(a *fakeAgent, _ wire.Start, stream *yamux.Stream) {
			for range 100 {
				a.print(stream, wire.KindStdout, "abc")
			}
			a.print(stream, wire.KindStderr, "12345")
			a.exit(stream, wire.Exit{})
		})
	if err != nil || !result.Truncated ||
		sent[Stdout].String() != "abcab" || sent[Stderr].String() != "12345" {
		t.Errorf("%q, %q, %+v, %v", sent[Stdout].String(), sent[Stderr].String(), result, err)
	}
}

func TestExitsThatAnAgentMayTell(t *testing.T) {
	long := strings.Repeat("é", maxMessage) // twice as many bytes
	for _, tt := range []struct {
		name string
		exit wire.Exit
		want Result
	}{
		{"killed", wire.Exit{Signal: 9}, Result{Signal: syscall.SIGKILL}},
		{"truncated", wire.Exit{Truncated: true}, Result{Truncated: true}},
		{"code out of range", wire.Exit{Code: 256 + 7}, Result{ExitCode: 7}},
		{"code below 0", wire.Exit{Code: -1}, Result{ExitCode: 255}},
		{"signal out of range", wire.Exit{Signal: 1<<20 + 15}, Result{Signal: syscall.SIGTERM}},
		{"signal below 0", wire.Exit{Signal: -1}, Result{Signal: 127}},
		{"directory", wire.Exit{Code: 126, Fault: wire.FaultCwd, Message: "x"},
			Result{ExitCode: 126, CwdFault: "x"}},
		{"program", wire.Exit{Code: 127, Fault: wire.FaultCommand, Message: "x"},
			Result{ExitCode: 127, CommandFault: "x"}},
		{"unknown fault", wire.Exit{Code: 1, Fault: "weather", Message: "x"},
			Result{ExitCode: 1, CommandFault: "x"}},
		{"long message", wire.Exit{Fault: wire.FaultCwd, Message: long},
			Result{CwdFault: long[:maxMessage]}},
		{"long message, cut in a character", wire.Exit{Fault: wire.FaultCwd, Message: "a" + long},
			Result{CwdFault: "a" + long[:maxMessage-2]}},
	} {
		exits := func(a *fakeAgent, _ wire.Start, stream *yamux.Stream) { a.exit(stream, tt.exit) }
		result, err := runAgainst(t, aCommand, discard, exits)
		if diff := cmp.Diff(tt.want, result); diff != "" || err != nil {
			t.Errorf("%s: %v, want (-), got (+):\n%s", tt.name, err, diff)
		}
	}
}

// TestAgentsThatBreakTheProtocol: the call fails clearly, and says that it is the container's
// doing.
func TestAgentsThatBreakTheProtocol(t *testing.T) {
	frame := func(kind wire.Kind, length int, data string) string {
		h := wire.Header(kind, length)
		return string(h[:]) + data
	}
	for name, bytes := range map[string]string{
		"ends without an exit": "",
		"unknown frame":        frame(99, 0, ""),
		"hello again":          frame(wire.KindHello, 2, "{}"),
		"frame too long":       frame(wire.KindStdout, wire.MaxData+1, ""),
		"exit too long":        frame(wire.KindExit, 1<<24-1, ""),
		"exit is no JSON":      frame(wire.KindExit, 4, "exit"),
		"frame cut short":      frame(wire.KindStdout, 10, "x"),
		"spooled, but no spool": frame(wire.KindSpooled, 9,
			string([]byte{byte(wire.KindStdout), 0, 0, 0, 0, 0, 0, 0, 1})),
		"spooled without a place": frame(wire.KindSpooled, 1, "x"),
	} {
		does := func(a *fakeAgent, _ wire.Start, stream *yamux.Stream) {
			_, err := stream.Write([]byte(bytes))
			a.must(err)
			_ = stream.Close() // the service may have been quicker
		}
		_, err := runAgainst(t, aCommand, discard, does)
		if !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAgentThatDies(t *testing.T) {
	dies := func(a *fakeAgent, _ wire.Start, _ *yamux.Stream) { _ = a.conn.Close() }
	_, err := runAgainst(t, aCommand, discard, dies)
	if !errors.Is(err, ErrBroken) {
		t.Error(err)
	}
}

func TestTimeoutEndsTheCommand(t *testing.T) {
	c := aCommand
	c.Timeout = 3 * time.Second
	begun := time.Now()
	var asked time.Duration
	does := func(a *fakeAgent, _ wire.Start, stream *yamux.Stream) {
		before := time.Now()
		m := a.told()
		asked = time.Since(before)
		if !m.Terminate || m.Grace != 2000 || m.Stream != stream.StreamID() {
			a.t.Errorf("%+v", m)
		}
		a.exit(stream, wire.Exit{Signal: 15})
	}
	result, err := runAgainst(t, c, discard, does)
	want := Result{Signal: syscall.SIGTERM, TimedOut: true, Timing: Timing{Run: c.Timeout}}
	if err != nil || !cmp.Equal(result, want) || asked != c.Timeout {
		t.Errorf("%+v, %v, asked after %v", result, err, asked)
	}
	if took := time.Since(begun); took > c.Timeout {
		t.Errorf("the clock is real: %v", took)
	}
}

// A command that had ended by then, so that only what it left was ended, was in time.
func TestTimeoutOfWhatACommandLeft(t *testing.T) {
	does := func(a *fakeAgent, _ wire.Start, stream *yamux.Stream) {
		a.told()
		a.exit(stream, wire.Exit{Code: 3, InTime: true})
	}
	result, err := runAgainst(t, aCommand, discard, does)
	want := Result{ExitCode: 3, Timing: Timing{Run: aCommand.Timeout}}
	if err != nil || !cmp.Equal(result, want) {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestCancelledCallEndsTheCommand(t *testing.T) {
	why := errors.New("the caller has gone")
	synctest.Test(t, func(t *testing.T) {
		s, agent, done := greeting(t)
		defer done()
		ctx, cancel := context.WithCancelCause(t.Context())
		agent.scripts.Go(func() {
			_, stream := agent.accept()
			cancel(why)
			if m := agent.told(); !m.Terminate {
				t.Errorf("%+v", m)
			}
			agent.exit(stream, wire.Exit{Signal: 9})
		})
		if _, err := s.Run(ctx, aCommand, discard); !errors.Is(err, why) {
			t.Error(err)
		}
	})
}

func TestReceiverThatFailsEndsTheCommand(t *testing.T) {
	why := errors.New("nobody reads")
	calls := 0
	_, err := runAgainst(t, aCommand, func(Stream, []byte) error { calls++; return why },
		func(a *fakeAgent, _ wire.Start, stream *yamux.Stream) {
			a.print(stream, wire.KindStdout, "1")
			if m := a.told(); !m.Terminate {
				a.t.Errorf("%+v", m)
			}
			a.print(stream, wire.KindStdout, "2")
			a.exit(stream, wire.Exit{Signal: 15})
		})
	if !errors.Is(err, why) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
}

func TestSignalsAreRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan syscall.Signal, 2)
		signals <- syscall.SIGINT
		signals <- syscall.SIGHUP
		c := aCommand
		c.Signals = signals
		s, agent, done := greeting(t)
		defer done()
		agent.scripts.Go(func() {
			_, stream := agent.accept()
			for _, want := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
				if m := agent.told(); m.Signal != int(want) || m.Stream != stream.StreamID() {
					t.Errorf("%+v, want %v", m, want)
				}
			}
			agent.exit(stream, wire.Exit{})
		})
		if _, err := s.Run(t.Context(), c, discard); err != nil {
			t.Error(err)
		}
	})
}

// A command that cannot be sent is the caller's fault, and costs nobody the session.
func TestACommandThatIsTooLarge(t *testing.T) {
	s, agent, done := greeting(t)
	defer done()
	agent.scripts.Go(func() {
		for range 2 { // of the first nothing comes
			stream, err := agent.mux.AcceptStream()
			if err == nil && wire.ReadMessage(stream, wire.KindStart, &wire.Start{}) == nil {
				agent.must(wire.WriteMessage(stream, wire.KindExit, wire.Exit{}))
			}
		}
	})
	large := aCommand
	large.Shell = strings.Repeat("x", 15<<20)
	_, err := s.Run(t.Context(), large, discard)
	if !cerrdefs.IsInvalidArgument(err) || errors.Is(err, ErrBroken) {
		t.Errorf("too large: %v", err)
	}
	if _, err := s.Run(t.Context(), aCommand, discard); err != nil {
		t.Errorf("the next one: %v", err)
	}
}
