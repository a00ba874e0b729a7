//go:build linux

package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// readiness is what the process says of itself now; nil is nothing yet.
func (p *process) readiness() *launch.Readiness {
	p.t.Helper()
	data, err := os.ReadFile(p.path(launch.StateFile))
	if err != nil {
		return nil
	}
	s, err := launch.ParseState(data)
	if err != nil {
		p.t.Fatal(err)
	}
	return s.Ready
}

func (p *process) untilReady(ok bool, message string) launch.Readiness {
	p.t.Helper()
	var last launch.Readiness
	p.until(fmt.Sprintf("ready is %v: %q", ok, message), func() bool {
		if r := p.readiness(); r != nil {
			last = *r
		}
		return last.OK == ok && strings.Contains(last.Message, message) && !last.Since.IsZero()
	})
	return last
}

// checked begins a command that ends when it is told to, with a check.
func checked(t *testing.T, ready launch.Ready) *process {
	t.Helper()
	ready.IntervalMs = 10
	if ready.TimeoutMs == 0 {
		ready.TimeoutMs = timeout.Milliseconds()
	}
	dir := t.TempDir()
	l := shell("while [ ! -e end ]; do sleep 0.01; done")
	l.Cwd, l.Env, l.Ready = dir, []string{"PATH=/usr/bin:/bin", "NAME=value"}, &ready
	p := begin(t, dir, l, nil)
	p.orders(launch.Order{Begin: true})
	return p
}

func (p *process) make(name string) {
	p.t.Helper()
	if err := os.WriteFile(p.path(name), nil, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// A process is ready while its check succeeds, and when it has ended nobody asks any more.
func TestReadyByCommand(t *testing.T) {
	p := checked(t, launch.Ready{Command: `[ "$NAME" = value ] && echo first; echo last >&2; [ -e up ] && ! { [ -e down ] && exit 3; }`})
	first := p.untilReady(false, "code 1: last")
	p.make("up")
	up := p.untilReady(true, "")
	p.make("down")
	down := p.untilReady(false, "code 3: last")
	if !first.Since.Before(up.Since) || !up.Since.Before(down.Since) || up.Message != "" {
		t.Errorf("%+v, %+v, %+v", first, up, down)
	}
	p.make("end")
	if code, s := p.end(); code != 0 || s.Ready != nil || p.log() != "" {
		t.Errorf("%d, %+v, log %q", code, s, p.log())
	}
}

// A check that takes too long is killed with its process group, and another one made.
func TestAReadyCommandThatHangs(t *testing.T) {
	p := checked(t, launch.Ready{Command: "echo $$ >> tried; sleep 1000 & wait", TimeoutMs: 50})
	p.untilReady(false, "longer than 50 ms")
	p.until("it was tried three times", func() bool {
		tried, _ := os.ReadFile(filepath.Join(p.dir, "tried"))
		return strings.Count(string(tried), "\n") >= 3
	})
	p.make("end")
	if code, s := p.end(); code != 0 {
		t.Errorf("%d, %+v", code, s)
	}
}

// A check that is under way ends with the command.
func TestACheckDoesNotOutliveTheCommand(t *testing.T) {
	p := checked(t, launch.Ready{Command: ": > begun; sleep 1000"})
	p.until("the check has begun", func() bool { return exists(p.path("begun")) })
	p.make("end")
	if code, s := p.end(); code != 0 {
		t.Errorf("%d, %+v", code, s)
	}
}

func TestReadyByPort(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		listener, err := net.Listen("tcp", host+":0")
		if err != nil {
			t.Fatal(err)
		}
		p := checked(t, launch.Ready{Port: listener.Addr().(*net.TCPAddr).Port})
		p.untilReady(true, "")
		_ = listener.Close()
		p.untilReady(false, "connection refused")
		p.make("end")
		p.end()
	}
}

// forwarded is a stream to a forwarder, with why it is not connected to a port.
func forwarded(t *testing.T, port int) (*yamux.Stream, error) {
	t.Helper()
	service, inside := net.Pipe()
	server, err := yamux.Server(inside, mux.Config(1), nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := yamux.Client(service, mux.Config(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if stream, err := server.AcceptStream(); err == nil {
			forward(stream)
		}
	}()
	t.Cleanup(func() { _ = client.Close(); _ = server.Close(); <-ended })
	stream, err := client.OpenStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream, wire.RequestPort(stream, port)
}

func TestAConnectionIsForwarded(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	stream, err := forwarded(t, listener.Addr().(*net.TCPAddr).Port)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	carried := wire.Carry(stream)
	text := strings.Repeat("text ", 100_000)
	go func() { _, _ = io.WriteString(carried, text); _ = carried.CloseWrite() }()
	if got, err := io.ReadAll(conn); err != nil || string(got) != text {
		t.Errorf("in came %d bytes, %v", len(got), err)
	}
	go func() { _, _ = io.WriteString(conn, text); _ = conn.Close() }()
	if got, err := io.ReadAll(carried); err != nil || string(got) != text {
		t.Errorf("out came %d bytes, %v", len(got), err)
	}
}

func TestForwardRefusesBadPorts(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	for port, want := range map[int]string{0: "no such port", 65536: "no such port", listener.Addr().(*net.TCPAddr).Port: "connection refused"} {
		if _, err := forwarded(t, port); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

// A connection that the program breaks is broken for the service, too.
func TestABrokenConnectionIsForwarded(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	stream, _ := forwarded(t, listener.Addr().(*net.TCPAddr).Port)
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
	if _, err := io.ReadAll(wire.Carry(stream)); err == nil {
		t.Error("it looks like the end")
	}
}

// When the service goes in the middle, the program does not take what has come for the whole.
func TestAServiceThatGoes(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, how := range []func(*yamux.Stream){
		func(s *yamux.Stream) { _ = s.CloseWrite() }, // as a session's end looks
		func(s *yamux.Stream) { _ = s.Reset() },
		func(s *yamux.Stream) { _, _ = s.Write([]byte("no frame")) },
	} {
		stream, _ := forwarded(t, listener.Addr().(*net.TCPAddr).Port)
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(wire.Carry(stream), "half"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		how(stream)
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%v", err)
		}
	}
}
