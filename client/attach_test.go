package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// bothWays runs a test with one request, and over a WebSocket: with stdin, which is at its end.
func bothWays(t *testing.T, test func(t *testing.T, s client.Streams)) {
	t.Helper()
	t.Run("request", func(t *testing.T) { test(t, client.Streams{}) })
	t.Run("WebSocket", func(t *testing.T) { test(t, client.Streams{Stdin: strings.NewReader("")}) })
}

// attached runs a command that does what do says.
func attached(t *testing.T, e types.Exec, s client.Streams, do func(context.Context, warm.Command, session.Output) (warm.Result, error)) (types.Result, error) {
	t.Helper()
	return newLab(t, sandboxtest.Started(do)).dial(t).Attach(t.Context(), "agent-7", e, s)
}

// noise is n bytes of all values.
func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data)
	return data
}

func TestAttachedOutputIsByteExact(t *testing.T) { bothWays(t, testByteExact) }

func testByteExact(t *testing.T, s client.Streams) {
	large := noise(3 << 20)
	var stdout, stderr bytes.Buffer
	s.Stdout, s.Stderr = &stdout, &stderr
	result, err := attached(t, types.Exec{Command: "x"}, s,
		func(_ context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
			var err error
			for rest := large; len(rest) > 0 && err == nil; {
				n := min(len(rest), 127<<10)
				err = errors.Join(out(session.Stdout, rest[:n]), out(session.Stderr, []byte("\r\n\xff")))
				rest = rest[n:]
			}
			return warm.Result{Result: session.Result{ExitCode: 42}}, err
		})
	if err != nil {
		t.Fatal(err)
	}
	parts := (len(large) + 127<<10 - 1) / (127 << 10)
	if !bytes.Equal(stdout.Bytes(), large) || stderr.String() != strings.Repeat("\r\n\xff", parts) {
		t.Errorf("%d bytes of stdout, %d of stderr", stdout.Len(), stderr.Len())
	}
	if result.ExitCode == nil || *result.ExitCode != 42 || result.Cwd != "/home" {
		t.Errorf("%+v", result)
	}
}

func TestOutputThatNobodyWantsIsDropped(t *testing.T) { bothWays(t, testDropped) }

func testDropped(t *testing.T, s client.Streams) {
	_, err := attached(t, types.Exec{Command: "x"}, s,
		func(_ context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
			return warm.Result{}, errors.Join(out(session.Stdout, []byte("a")), out(session.Stderr, []byte("b")))
		})
	if err != nil {
		t.Error(err)
	}
}

// TestStdinIsFedAsItIsTaken echoes several windows of stdin through the command.
func TestStdinIsFedAsItIsTaken(t *testing.T) {
	large := noise(4*types.StdinWindow + 3)
	var stdout bytes.Buffer
	_, err := attached(t, types.Exec{Command: "cat"}, client.Streams{Stdin: bytes.NewReader(large), Stdout: &stdout},
		func(_ context.Context, r warm.Command, out session.Output) (warm.Result, error) {
			buffer := make([]byte, 100<<10)
			for {
				n, err := r.Stdin.Read(buffer)
				if outErr := out(session.Stdout, buffer[:n]); outErr != nil {
					return warm.Result{}, outErr
				}
				if errors.Is(err, io.EOF) {
					return warm.Result{}, nil
				}
			}
		})
	if err != nil || !bytes.Equal(stdout.Bytes(), large) {
		t.Errorf("%d bytes, %v", stdout.Len(), err)
	}
}

func TestWithoutStdinThereIsNone(t *testing.T) {
	_, err := attached(t, types.Exec{Command: "cat"}, client.Streams{},
		func(_ context.Context, r warm.Command, _ session.Output) (warm.Result, error) {
			if r.Stdin != nil {
				return warm.Result{}, errors.New("there is stdin")
			}
			return warm.Result{}, nil
		})
	if err != nil {
		t.Error(err)
	}
}

// A command may end while its stdin is stuck, and while the reader of its stdin blocks.
func TestExitDoesNotWaitForStdin(t *testing.T) {
	blocked, unblock := io.Pipe()
	defer func() { _ = unblock.Close() }()
	for name, stdin := range map[string]io.Reader{"stuck": bytes.NewReader(make([]byte, 3*types.StdinWindow)), "blocked": blocked} {
		_, err := attached(t, types.Exec{Command: "true"}, client.Streams{Stdin: stdin},
			func(context.Context, warm.Command, session.Output) (warm.Result, error) {
				return warm.Result{}, nil
			})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSignalsArrive(t *testing.T) { bothWays(t, testSignals) }

func testSignals(t *testing.T, s client.Streams) {
	signals := make(chan string, 2)
	signals <- "INT"
	s.Signals = signals
	result, err := attached(t, types.Exec{Command: "sleep 100"}, s,
		func(_ context.Context, r warm.Command, _ session.Output) (warm.Result, error) {
			return warm.Result{Result: session.Result{Signal: <-r.Signals}}, nil
		})
	if err != nil || result.Signal == nil || *result.Signal != "SIGINT" {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestAttachToldWhy(t *testing.T) { bothWays(t, testToldWhy) }

func testToldWhy(t *testing.T, s client.Streams) {
	_, err := attached(t, types.Exec{Command: "x"}, s,
		func(context.Context, warm.Command, session.Output) (warm.Result, error) {
			return warm.Result{}, session.ErrBroken
		})
	var failure *client.Error
	if !errors.As(err, &failure) || failure.Kind != types.Engine || failure.Message != session.ErrBroken.Error() || failure.RequestID == "" {
		t.Errorf("%#v", err)
	}
}

func TestCancelEndsTheCommand(t *testing.T) { bothWays(t, testCancel) }

func testCancel(t *testing.T, s client.Streams) {
	why := errors.New("the person lost patience")
	ctx, cancel := context.WithCancelCause(t.Context())
	over := make(chan struct{})
	c := newLab(t, func(ctx context.Context, _ dockerexec.Spec, _ warm.Command, _ session.Output) (warm.Result, error) {
		cancel(why)
		<-ctx.Done()
		close(over)
		return warm.Result{}, ctx.Err()
	}).dial(t)
	if _, err := c.Attach(ctx, "agent-7", types.Exec{Command: "sleep 100"}, s); !errors.Is(err, why) {
		t.Error(err)
	}
	<-over
}

// A receiver that fails, such as a pipe that is closed, ends the call and with it the command.
func TestOutputThatCannotBeWritten(t *testing.T) { bothWays(t, testCannotBeWritten) }

func testCannotBeWritten(t *testing.T, s client.Streams) {
	reader, writer := io.Pipe()
	_ = reader.Close()
	over := make(chan struct{})
	s.Stdout = writer
	_, err := attached(t, types.Exec{Command: "yes"}, s,
		func(ctx context.Context, _ warm.Command, out session.Output) (warm.Result, error) {
			defer close(over)
			for {
				if err := out(session.Stdout, []byte("y\n")); err != nil {
					return warm.Result{}, err
				}
			}
		})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	<-over
}

func TestServiceThatDiesInTheMiddle(t *testing.T) { bothWays(t, testDies) }

func testDies(t *testing.T, s client.Streams) {
	c := dialHandler(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if s.Stdin == nil {
			w.Header().Set("Content-Type", types.Frames)
			_, _ = w.Write([]byte{types.ChannelStdout, 0, 0, 0, 0, 0, 0, 9, 'x'})
			return
		}
		conn, err := websocket.Accept(w, req, nil)
		if err != nil {
			t.Error(err)
			return
		}
		_, _, _ = conn.Read(req.Context())
		_ = conn.CloseNow()
	}))
	_, err := c.Attach(t.Context(), "agent-7", types.Exec{Command: "x"}, s)
	if err == nil || !strings.Contains(err.Error(), "connection to the service was lost while the command ran") {
		t.Error(err)
	}
}

// A signal finds the command of a streamed exec by the id that its start has.
func TestSignalsNeedAnExec(t *testing.T) {
	c := newLab(t, nil).dial(t)
	var refused *client.Error
	if err := c.Signal(t.Context(), "agent-7", "x-1", "INT"); !errors.As(err, &refused) || refused.Kind != types.NotFound {
		t.Error(err)
	}
	if err := c.Signal(t.Context(), "agent-7", "x-1", "SEGV"); !errors.As(err, &refused) || refused.Kind != types.Invalid {
		t.Error(err)
	}
}
