package dockerexec

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// dockerFrame is a piece of an attach stream.
func dockerFrame(stream byte, data string) []byte {
	frame := []byte{stream, 0, 0, 0}
	return append(binary.BigEndian.AppendUint32(frame, uint32(len(data))), data...)
}

// attachStream is the container's end of a docker exec: what it writes comes out framed as stdout.
type attachStream struct{ net.Conn }

func (s attachStream) Write(p []byte) (int, error) {
	if _, err := s.Conn.Write(dockerFrame(1, string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// pausableConn is a connection to a program that does nothing while it is paused.
type pausableConn struct {
	net.Conn
	awake func() bool
}

func (p pausableConn) Read(into []byte) (int, error) {
	n, err := p.Conn.Read(into)
	if !p.awake() {
		return 0, io.EOF
	}
	return n, err
}

func (s *scriptedEngine) exec(w http.ResponseWriter, r *http.Request) {
	if _, there := s.container(w, r); !there {
		return
	}
	s.mu.Lock()
	s.began = append(s.began, s.containers[r.PathValue("id")].Labels[labelUser])
	s.execs++
	s.mostExecs = max(s.mostExecs, s.execs)
	s.mu.Unlock()
	time.Sleep(s.execTakes)
	s.mu.Lock()
	s.execs--
	s.mu.Unlock()
	w.WriteHeader(http.StatusCreated)
	answer(w, map[string]string{"Id": r.PathValue("id")})
}

// connect answers an exec that begins, and who attaches himself to a container.
func (s *scriptedEngine) connect(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		s.t.Error(err)
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	if s.unasked || wire.ReadMessage(conn, wire.KindHello, &wire.Hello{}) == nil {
		s.attach(r.PathValue("id"), attachStream{conn})
	}
}

// obey is an agent whose commands end at once.
func (s *scriptedEngine) obey(conn attachStream) {
	defer conn.Close()
	if wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: wire.Version}) != nil {
		return
	}
	mux, err := yamux.Server(conn, mux.Config(100), nil)
	if err != nil {
		return
	}
	defer mux.Close()
	if _, err := mux.AcceptStream(); err != nil { // for control
		return
	}
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return
		}
		var start wire.Start
		if wire.ReadMessage(stream, wire.KindStart, &start) == nil {
			if s.breaks {
				header := wire.Header(wire.KindStdout, len("so far"))
				_, _ = stream.Write(append(header[:], "so far"...))
				time.Sleep(time.Millisecond) // which passes once it is read
				return
			}
			_ = wire.WriteMessage(stream, wire.KindExit, s.exit)
		}
		_ = stream.Close()
	}
}

func (s *scriptedEngine) follow(w http.ResponseWriter, r *http.Request) {
	told := make(chan events.Message, 100)
	s.mu.Lock()
	s.listeners = append(s.listeners, told)
	s.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case m := <-told:
			_ = json.NewEncoder(w).Encode(m)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// spools are those that are left.
func (s *scriptedEngine) spools() string {
	left, _ := filepath.Glob(filepath.Join(s.dir, spoolPrefix+"*"))
	return strings.Join(left, " ")
}

// pipeListener takes connections that never leave the test.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipeListener) Close() error { close(l.closed); return nil }

func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "engine"} }
