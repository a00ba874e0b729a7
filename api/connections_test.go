package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/warm"
)

// sharedService has so many connections for all. Who calls is the header Authorization over TCP.
type sharedService struct {
	t       *testing.T
	address string
	shared  *Connections
	work    chan struct{} // what an exec waits for
	running chan struct{} // gets one for each exec that has begun
}

func newSharedService(t *testing.T, total int, who func(net.Conn) (string, bool)) *sharedService {
	t.Helper()
	s := &sharedService{t: t, shared: NewConnections(total), work: make(chan struct{}), running: make(chan struct{}, total)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	l := newLab(t, func(ctx context.Context, _ dockerexec.Spec, _ warm.Command, _ session.Output) (warm.Result, error) {
		s.running <- struct{}{}
		select {
		case <-s.work:
		case <-ctx.Done():
		}
		return warm.Result{}, nil
	})
	cfg := l.config()
	cfg.Authenticator = func(req *http.Request) (access.Caller, error) {
		if name := req.Header.Get("Authorization"); name != "" {
			return access.Caller{Name: name, Users: ids.Everyone()}, nil
		}
		return access.Caller{}, errors.New("nobody")
	}
	server := &http.Server{Handler: New(l.Service, cfg)}
	prepared := Prepare(server, listener, s.shared, who)
	go func() { _ = server.Serve(prepared) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

func (s *sharedService) connect() net.Conn { return s.connectFrom("127.0.0.1") }

// connectFrom connects from an address of this host's.
func (s *sharedService) connectFrom(address string) net.Conn {
	s.t.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).Dial("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn
}

// resting reports whether a connection from an address has no request.
func (s *sharedService) resting(address string) bool {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	return s.shared.idlest(func(w *wire) bool { return strings.HasPrefix(w.RemoteAddr().String(), address+":") }) != nil
}

// ask makes a request on a connection and returns the status; 0 where it was broken.
func (s *sharedService) ask(conn net.Conn, name, route, body string) int {
	s.t.Helper()
	_, _ = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", route, name, len(body), body)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// exec asks for a command that runs until work is closed, and waits until it has begun or is refused.
func (s *sharedService) exec(name string) (status chan int, refused bool) {
	s.t.Helper()
	conn := s.connect()
	status = make(chan int, 1)
	go func() { status <- s.ask(conn, name, "POST /v1/sandboxes/a/exec", `{"command":"x"}`) }()
	select {
	case <-s.running:
		return status, false
	case got := <-status:
		status <- got
		return status, true
	}
}

const listing = "GET /v1/sandboxes"

// TestIdleConnectionsMakeRoom has one caller, and a client without a token, open ever more connections: each
// loses its own oldest ones, and another caller's is left alone.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	s := newSharedService(t, 100, nil)
	kept := s.connect()
	if got := s.ask(kept, "other", listing, ""); got != 200 {
		t.Fatal(got)
	}
	first := s.connect()
	if got := s.ask(first, "many", listing, ""); got != 200 {
		t.Fatal(got)
	}
	for range 200 {
		if got := s.ask(s.connect(), "many", listing, ""); got != 200 {
			t.Fatal(got)
		}
	}
	for range 200 {
		s.connect() // and says nothing
	}
	if got := s.ask(first, "many", listing, ""); got != 0 {
		t.Errorf("the connection that was idle for longest: %d", got)
	}
	for _, conn := range []net.Conn{kept, s.connect()} {
		if got := s.ask(conn, "other", listing, ""); got != 200 {
			t.Errorf("another caller: %d", got)
		}
	}
	if stats := s.shared.Stats(); stats.Used > 60 || stats.Refused != 0 {
		t.Errorf("%+v", stats)
	}
}

// TestBusyConnectionsAreRefused has one caller run as much as it may: its next is refused, and another caller is not held up.
func TestBusyConnectionsAreRefused(t *testing.T) {
	s := newSharedService(t, 40, nil)
	var running []chan int
	for {
		status, refused := s.exec("many")
		if refused {
			if got := <-status; got != http.StatusTooManyRequests {
				t.Errorf("beyond its share: %d", got)
			}
			break
		}
		if running = append(running, status); len(running) > 40 {
			t.Fatal("it is not bounded")
		}
	}
	if len(running) < 8 || len(running) > 10 {
		t.Errorf("%d connections of 40 are one caller's", len(running))
	}
	other, refused := s.exec("other")
	if refused {
		t.Error("another caller is refused")
	}
	close(s.work)
	for _, status := range append(running, other) {
		if got := <-status; got != 200 {
			t.Errorf("what was running: %d", got)
		}
	}
	if got := s.ask(s.connect(), "many", listing, ""); got != 200 {
		t.Errorf("when it has ended: %d", got)
	}
}

// TestOperatorsAlwaysGetIn has other callers take all the connections they can.
func TestOperatorsAlwaysGetIn(t *testing.T) {
	who := make(chan string, 1)
	s := newSharedService(t, 4, func(net.Conn) (string, bool) {
		name := <-who
		return name, name == "root"
	})
	for i := range 10 {
		who <- fmt.Sprint(i)
		if _, refused := s.exec(fmt.Sprint(i)); refused {
			break
		}
	}
	who <- "late"
	if got := s.ask(s.connect(), "late", listing, ""); got != 0 && got != http.StatusTooManyRequests {
		t.Errorf("there was room for another caller: %d", got)
	}
	for range 100 {
		who <- "root"
		if got := s.ask(s.connect(), "root", listing, ""); got != 200 {
			t.Fatalf("root: %d", got)
		}
	}
	if s.shared.Stats().Refused == 0 {
		t.Error("nobody was refused")
	}
}

// TestBodiesHaveShares has one caller begin ever more bodies: they take no more memory than its share, and
// slow senders are not waited for.
func TestBodiesHaveShares(t *testing.T) {
	pool := memoryOf(1)
	one, other := &requestMemory{of: pool, holder: "one"}, &requestMemory{of: pool, holder: "other"}
	zeros := struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 1<<20))}
	taken := 0
	for {
		n, err := io.Copy(io.Discard, one.reader(zeros))
		taken += int(n)
		if err != nil {
			break
		}
		if taken > 512<<20 {
			t.Fatal("it is not bounded")
		}
		zeros.Reader = strings.NewReader(strings.Repeat("x", 1<<20))
	}
	if taken < 120<<20 || taken > 140<<20 {
		t.Errorf("one caller has %d bytes", taken)
	}
	if err := other.take(32 << 20); err != nil {
		t.Error(err)
	}
	one.release()
	other.release()
	if pool.Stats().Used != 0 {
		t.Errorf("%+v", pool.Stats())
	}
}

// TestTricklingBodies sends a byte now and then: the body keeps coming, but too slowly.
func TestTricklingBodies(t *testing.T) {
	server := newLab(t, nil).serveConfig(func(cfg *Config) { cfg.BodyDelay = 200 * time.Millisecond })
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /v1/sandboxes/a/exec HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{")
	go func() {
		for {
			if _, err := io.WriteString(conn, " "); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond) // the sender's slowness
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != http.StatusBadRequest {
		t.Fatalf("%v, %v", answer, err)
	}
	if text, _ := io.ReadAll(answer.Body); !strings.Contains(string(text), "it came too slowly") {
		t.Errorf("%s", text)
	}
}
