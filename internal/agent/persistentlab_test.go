package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// envSocket is where a first process under test listens that has commands, and envBuiltin what its shells ahead wait in.
const (
	envSocket  = "TEST_LASTING_SOCKET"
	envBuiltin = "TEST_LASTING_BUILTIN"
)

// persistentUnderTest is such a first process, and a connection to it.
type persistentUnderTest struct {
	t      *testing.T
	socket string
	cmd    *exec.Cmd
	mux    *yamux.Session
	over   *net.UnixConn // of the connection's bridge, which the first process closes once it has done with that
}

func beginPersistent(t *testing.T) *persistentUnderTest {
	t.Helper()
	return beginPersistentWith(t, "/nosuch")
}

func beginPersistentWith(t *testing.T, builtin string) *persistentUnderTest {
	t.Helper()
	dir := t.TempDir()
	l := &persistentUnderTest{t: t, socket: filepath.Join(dir, "s")}
	l.cmd = exec.Command("/proc/self/exe")
	l.cmd.Env = append(os.Environ(), envDir+"="+dir, envSocket+"="+l.socket, envBuiltin+"="+builtin)
	l.cmd.Stderr = os.Stderr
	l.cmd.SysProcAttr = namespaces()
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill()
		_ = l.cmd.Wait()
	})
	l.connect()
	return l
}

// connect is what a service does that has just come.
func (l *persistentUnderTest) connect() {
	l.t.Helper()
	conn := l.bridge()
	var hello wire.Hello
	if err := wire.ReadMessage(conn, wire.KindHello, &hello); err != nil || hello.Version != control.Version {
		l.t.Fatalf("%+v, %v", hello, err)
	}
	session, err := yamux.Client(conn, mux.Config(0), nil)
	if err != nil {
		l.t.Fatal(err)
	}
	l.mux = session
}

// lose ends the connection, and returns when the first process has noticed: what it sends until then is lost.
func (l *persistentUnderTest) lose() {
	l.t.Helper()
	_ = l.mux.Close()
	_ = l.over.SetReadDeadline(time.Now().Add(timeout))
	if _, err := io.Copy(io.Discard, l.over); err != nil {
		l.t.Fatal(err)
	}
}

// bridge is what the service has of a bridge's stdin and stdout.
func (l *persistentUnderTest) bridge() stdio {
	l.t.Helper()
	in, out, to, from := twoPipes(l.t)
	bridge, err := give(l.socket, int(in.Fd()), int(out.Fd()))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = bridge.Close() })
	l.over = bridge
	return stdio{in: from, out: to}
}

// ask opens a stream for a request and returns the answer.
func (l *persistentUnderTest) ask(r control.Request, input ...byte) (*yamux.Stream, control.Answer) {
	l.t.Helper()
	stream, err := l.mux.OpenStream(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = stream.Reset() })
	_ = stream.SetDeadline(time.Now().Add(timeout))
	r.Length = len(input)
	if err := wire.WriteMessage(stream, wire.KindRequest, r); err != nil {
		l.t.Fatal(err)
	}
	if _, err := stream.Write(input); err != nil {
		l.t.Fatal(err)
	}
	var answer control.Answer
	if err := wire.ReadMessage(stream, wire.KindAnswer, &answer); err != nil {
		l.t.Fatalf("%s: %v", r.Do, err)
	}
	return stream, answer
}

func shellRun(text string) *control.Run {
	r := &control.Run{}
	r.Args, r.Cwd = []string{"sh", "-c", text}, "/"
	r.Env = []string{"PATH=/usr/bin:/bin"}
	return r
}

// start starts a shell command and returns who follows it.
func (l *persistentUnderTest) start(text string, change ...func(*control.Request)) (*yamux.Stream, int) {
	l.t.Helper()
	r := control.Request{Do: control.Begin, Run: shellRun(text)}
	for _, c := range change {
		c(&r)
	}
	stream, answer := l.ask(r)
	if answer.Fault != "" || answer.PID <= 1 {
		l.t.Fatalf("%s: %+v", text, answer)
	}
	return stream, answer.PID
}

// rest reads what a stream tells, to its end.
func rest(t *testing.T, stream io.Reader) string {
	t.Helper()
	text, err := told(stream, "")
	if err != nil {
		t.Fatalf("%q, then %v", text, err)
	}
	return text
}

// told reads until all has been told, or a text has.
func told(stream io.Reader, until string) (string, error) {
	var text strings.Builder
	for until == "" || !strings.Contains(text.String(), until) {
		kind, length, err := wire.ReadHeader(stream)
		if err != nil {
			return text.String(), err
		}
		switch kind {
		case wire.KindStdout, wire.KindStderr:
			data := make([]byte, length)
			if _, err := io.ReadFull(stream, data); err != nil {
				return text.String(), err
			}
			if kind == wire.KindStderr {
				fmt.Fprintf(&text, "(%s)", data)
			} else {
				text.Write(data)
			}
		case wire.KindExit:
			var exit wire.Exit
			if err := wire.DecodeMessage(stream, length, &exit); err != nil {
				return text.String(), err
			}
			fmt.Fprintf(&text, "[%d %d %v]", exit.Code, exit.Signal, exit.TimedOut)
			return text.String(), nil
		default:
			var answer control.Answer
			if err := wire.DecodeMessage(stream, length, &answer); err != nil {
				return text.String(), err
			}
			if answer.Lost > 0 {
				fmt.Fprintf(&text, "<%d lost>", answer.Lost)
				continue
			}
			fmt.Fprintf(&text, "<%s>", answer.Fault)
			return text.String(), nil
		}
	}
	return text.String(), nil
}

func (l *persistentUnderTest) list() (entries []control.Entry) {
	l.t.Helper()
	stream, _ := l.ask(control.Request{Do: control.List})
	for {
		var e control.Entry
		if err := wire.ReadMessage(stream, wire.KindEntry, &e); err != nil {
			l.t.Fatal(err)
		}
		if e.PID == 0 {
			return entries
		}
		entries = append(entries, e)
	}
}
