package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func newListeners(t *testing.T, allowed PortRange) *Listeners {
	l := NewListeners(allowed, zerolog.New(zerolog.NewTestWriter(t)))
	t.Cleanup(l.Shutdown)
	return l
}

// inside is a server in a container: each connection that is dialled comes out of its channel.
func inside(t *testing.T) (Dial, <-chan net.Conn) {
	t.Helper()
	server, err := net.Listen("tcp4", Loopback+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	came := make(chan net.Conn, 100)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			came <- conn
		}
	}()
	return func(ctx context.Context, _ int) (Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", server.Addr().String())
		if err != nil {
			return nil, err
		}
		return tcp{conn.(*net.TCPConn)}, nil
	}, came
}

type tcp struct{ *net.TCPConn }

func (c tcp) Abort() { abort(c.TCPConn) }

// abort breaks a connection.
func abort(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

func connect(t *testing.T, port int) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.ParseIP(Loopback), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil { // a hang is a failure
		t.Fatal(err)
	}
	return conn
}

// Both directions come through whole, and each ends by itself.
func TestConnectionsAreCarried(t *testing.T) {
	l := newListeners(t, freeRange(t, 1))
	dial, came := inside(t)
	ports, err := l.Open("user-p", "p", []Port{{Port: 80}}, dial)
	if err != nil {
		t.Fatal(err)
	}
	outer := connect(t, ports[0].HostPort)
	inner := <-came
	defer inner.Close()
	question, answer := strings.Repeat("question ", 100_000), strings.Repeat("answer ", 100_000)
	go func() {
		_, _ = io.WriteString(outer, question)
		_ = outer.CloseWrite()
	}()
	if got, err := io.ReadAll(inner); err != nil || string(got) != question {
		t.Fatalf("%d bytes of %d, %v", len(got), len(question), err)
	}
	go func() {
		_, _ = io.WriteString(inner, answer)
		_ = inner.Close()
	}()
	if got, err := io.ReadAll(outer); err != nil || string(got) != answer {
		t.Fatalf("%d bytes of %d, %v", len(got), len(answer), err)
	}
}

// A connection that breaks on one side is no end on the other.
func TestBrokenConnectionsBreak(t *testing.T) {
	l := newListeners(t, freeRange(t, 1))
	dial, came := inside(t)
	ports, err := l.Open("user-p", "p", []Port{{Port: 80}}, dial)
	if err != nil {
		t.Fatal(err)
	}
	outer := connect(t, ports[0].HostPort)
	abort((<-came).(*net.TCPConn))
	if _, err := outer.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a connection that broke inside: %v", err)
	}
	outer = connect(t, ports[0].HostPort)
	inner := <-came
	abort(outer)
	_ = inner.SetDeadline(time.Now().Add(time.Minute))
	if _, err := inner.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a connection that broke outside: %v", err)
	}
}

// What leads to nobody is like a port at which nobody listens.
func TestNobodyInside(t *testing.T) {
	l := newListeners(t, freeRange(t, 1))
	ports, err := l.Open("user-p", "p", []Port{{Port: 80}}, func(context.Context, int) (Conn, error) { return nil, errors.New("no") })
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp4", net.JoinHostPort(Loopback, strconv.Itoa(ports[0].HostPort)))
	if err == nil { // else it was broken at once
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
}

// Close ends what is open, also what is only being dialled, and frees the ports.
func TestCloseEndsConnections(t *testing.T) {
	l := newListeners(t, freeRange(t, 2))
	dial, came := inside(t)
	dialling := make(chan struct{})
	ports, err := l.Open("user-p", "p", []Port{{Port: 80}, {Port: 81}}, func(ctx context.Context, port int) (Conn, error) {
		if port == 80 {
			return dial(ctx, port)
		}
		close(dialling)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	open, opening := connect(t, ports[0].HostPort), connect(t, ports[1].HostPort)
	inner := <-came
	defer inner.Close()
	<-dialling
	l.Close("p")
	l.Close("p") // once more does no harm
	for _, conn := range []*net.TCPConn{open, opening} {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a connection goes on")
		}
	}
	again, err := l.Open("user-q", "q", []Port{{Port: 1, HostPort: ports[0].HostPort}}, dial)
	if err != nil || again[0].HostPort != ports[0].HostPort {
		t.Errorf("%+v, %v", again, err)
	}
}

// One more connection than there may be waits until another ends.
func TestConnectionsAreBounded(t *testing.T) {
	l := newListeners(t, freeRange(t, 1))
	dial, came := inside(t)
	ports, err := l.Open("user-p", "p", []Port{{Port: 80}}, dial)
	if err != nil {
		t.Fatal(err)
	}
	var inner []net.Conn
	for range maxConnections {
		connect(t, ports[0].HostPort)
		inner = append(inner, <-came)
	}
	for i := range 10 {
		if _, err := fmt.Fprint(connect(t, ports[0].HostPort), i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 10 {
		if len(came) > 0 {
			t.Fatalf("there are %d connections too many", len(came))
		}
		abort(inner[i].(*net.TCPConn))
		got := make([]byte, 1)
		if _, err := io.ReadFull(<-came, got); err != nil || string(got) != fmt.Sprint(i) {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// So are those of all together, of which users have shares, whatever they expose.
func TestConnectionsOfAllAreBounded(t *testing.T) {
	l := newListeners(t, freeRange(t, 2))
	if total := l.all.Stats().Total; total != maxAllConnections {
		t.Errorf("%d are allowed, want %d", total, maxAllConnections)
	}
	l.all = fair.NewPool(14, 0) // three for one, two for another
	dial, came := inside(t)
	hosts := map[string]int{}
	for _, name := range []string{"p", "q"} {
		ports, err := l.Open("user-"+name, name, []Port{{Port: 80}}, dial)
		if err != nil {
			t.Fatal(err)
		}
		hosts[name] = ports[0].HostPort
	}
	var inner []net.Conn
	for _, name := range []string{"p", "p", "p", "q", "q"} {
		connect(t, hosts[name])
		inner = append(inner, <-came)
	}
	connect(t, hosts["p"])
	connect(t, hosts["q"])
	waittest.Until(t, "both are refused a place", func() bool { return len(came) > 0 || l.all.Stats().Refused >= 4 })
	if len(came) > 0 {
		t.Error("there are too many connections")
	}
	for _, first := range inner[:2] {
		abort(first.(*net.TCPConn))
		defer (<-came).Close()
	}
	// What an owner leaves is for the others.
	l.Close("p")
	for _, own := range inner[3:] {
		abort(own.(*net.TCPConn))
	}
	for range 2 {
		connect(t, hosts["q"])
		defer (<-came).Close()
	}
}

// A port that nobody connects to takes no place of a connection.
func TestIdlePortsTakeNoPlace(t *testing.T) {
	l := newListeners(t, freeRange(t, 3))
	l.all = fair.NewPool(4, 0)
	dial, came := inside(t)
	for _, name := range []string{"p", "q", "r"} {
		if _, err := l.Open("user-"+name, name, []Port{{Port: 80}}, dial); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"p", "q", "r", "p"} {
		connect(t, l.Ports(name)[0].HostPort)
		select {
		case inner := <-came:
			abort(inner.(*net.TCPConn))
		case <-time.After(time.Minute):
			t.Fatalf("nobody came to the port of %s", name)
		}
	}
}

// slow is a connection whose ends never come.
type slow struct{ Conn }

func (slow) Read([]byte) (int, error)         { select {} }
func (slow) Write([]byte) (int, error)        { select {} }
func (slow) SetWriteDeadline(time.Time) error { return nil }
func (slow) Abort()                           {}

// Whoever does not end holds nobody up for long.
func TestNobodyHoldsUpTheEnd(t *testing.T) {
	l := newListeners(t, freeRange(t, 2))
	dialled := make(chan struct{}, 2)
	for _, name := range []string{"p", "q"} {
		ports, err := l.Open("user-"+name, name, []Port{{Port: 80}}, func(context.Context, int) (Conn, error) { dialled <- struct{}{}; return slow{}, nil })
		if err != nil {
			t.Fatal(err)
		}
		connect(t, ports[0].HostPort)
		<-dialled
	}
	begun := time.Now()
	l.Close("p")
	l.Shutdown()
	if took := time.Since(begun); took > 10*closeLimit {
		t.Errorf("it took %s", took)
	}
}
