package session

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// fakeAgent is what runs in the container: it does what a test says, good or bad.
type fakeAgent struct {
	t       *testing.T
	conn    net.Conn
	mux     *yamux.Session
	control *yamux.Stream
	scripts sync.WaitGroup
}

// pipe is a Conn to an agent that says nothing on stderr.
type pipe struct{ net.Conn }

func (pipe) Stderr() string { return "" }

// pipeToAgent makes both ends of a connection to an agent.
func pipeToAgent(t *testing.T) (*greeter, net.Conn) {
	t.Helper()
	host, inside := net.Pipe()
	t.Cleanup(func() { _ = host.Close(); _ = inside.Close() })
	return &greeter{Conn: pipe{host}}, inside
}

// greeting starts a session with a fake agent that has greeted properly. done waits for the agent's
// scripts and closes both ends.
func greeting(t *testing.T) (s *Session, agent *fakeAgent, done func()) {
	t.Helper()
	host, conn := pipeToAgent(t)
	s, agent = &Session{}, &fakeAgent{t: t, conn: conn}
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		agent.must(wire.ReadMessage(conn, wire.KindHello, &wire.Hello{}))
		agent.must(wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: wire.Version}))
		var err error
		agent.mux, err = yamux.Server(conn, mux.Config(100), nil)
		agent.must(err)
		agent.control, err = agent.mux.AcceptStream()
		agent.must(err)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), HandshakeLimit)
	defer cancel()
	if err := s.greet(ctx, host); err != nil {
		t.Fatal(err)
	}
	<-ready
	return s, agent, func() {
		agent.scripts.Wait()
		s.Close()
		_ = agent.mux.Close()
	}
}

func (a *fakeAgent) must(err error) {
	if err != nil {
		a.t.Errorf("fake agent: %v", err)
	}
}

// accept takes the next command.
func (a *fakeAgent) accept() (wire.Start, *yamux.Stream) {
	stream, err := a.mux.AcceptStream()
	a.must(err)
	var start wire.Start
	a.must(wire.ReadMessage(stream, wire.KindStart, &start))
	return start, stream
}

// told is the next control message.
func (a *fakeAgent) told() wire.Control {
	var m wire.Control
	a.must(wire.ReadMessage(a.control, wire.KindControl, &m))
	return m
}

// print sends output as one frame.
func (a *fakeAgent) print(stream io.Writer, kind wire.Kind, data string) {
	h := wire.Header(kind, len(data))
	_, err := stream.Write(append(h[:], data...))
	a.must(err)
}

func (a *fakeAgent) exit(stream *yamux.Stream, exit wire.Exit) {
	a.must(wire.WriteMessage(stream, wire.KindExit, exit))
	a.must(stream.Close())
}

// fakeSpool is a spool file with text in its first slot.
func fakeSpool(t *testing.T, tell func(wire.Control) error, text string) *spool {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if _, err := file.WriteAt([]byte(text), 0); err != nil {
		t.Fatal(err)
	}
	return &spool{file: file, tell: tell}
}

// aCommand is one with time enough.
var aCommand = Command{
	Command: launch.Command{Shell: "x"}, Timeout: time.Hour, Grace: 2 * time.Second,
}

func discard(Stream, []byte) error { return nil }
