package guard

import (
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

func TestNoDescriptorStays(t *testing.T) {
	port, origin := rawOrigin(t)
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := descriptors()
	r := newRig(t, port, 0, nil)
	var mine []*net.TCPConn
	for i := range 20 {
		c, o := established(r, origin)
		switch {
		case i == 0:
			stuffed(t, c) // its pipe is full when it ends
		case i == 1:
			stuffed(t, o)
		default:
			_, _ = c.Write([]byte("ping"))
			if _, err := io.ReadFull(o, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
		}
		mine = append(mine, c, o, dial(t, r.tls))
	}
	close(r.endpoint.done)
	eventually(t, "connections stay", func() bool { return r.Open() == 0 })
	for _, c := range mine {
		_ = c.Close()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "descriptors stay", func() bool { return descriptors() <= before })
}

// TestOutOfDescriptors: a client that waits for descriptors is served once there are some again.
func TestOutOfDescriptors(t *testing.T) {
	port, origin := rawOrigin(t)
	p := startAlone(t, port, port)
	var usual unix.Rlimit
	if err := unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		t.Fatal(err)
	}
	limit := func(most uint64) {
		t.Helper()
		if err := unix.Prlimit(p.pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: usual.Max}, nil); err != nil {
			t.Fatal(err)
		}
	}
	limit(3) // those that it has beyond that it may keep
	c := dial(t, p.tls)
	_, _ = c.Write(records(message(named("allowed.example")), recordMost))
	for line := ""; !strings.Contains(line, "too many open files"); {
		var err error
		if line, err = p.said.ReadString('\n'); err != nil {
			t.Fatalf("it did not say that it cannot accept: %v", err)
		}
	}
	if len(origin) > 0 {
		t.Error("it could")
	}
	limit(usual.Cur)
	o := take(t, origin)
	_, _ = o.Write([]byte{21, 3, 3, 0, 2, 1, 0})
	if _, err := io.ReadFull(c, make([]byte, 7)); err != nil {
		t.Error(err)
	}
}

// TestLimitsBoundWhatWaits: a connection that waits for a busy loop is counted already.
func TestLimitsBoundWhatWaits(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	r := newRig(t, 1, 0, func(c *Config) { c.Limits.Connections = 3 })
	busy := make(chan bool)
	r.loops[1].Post(func() { <-busy })
	for range 20 {
		if c, err := net.Dial("tcp", r.tls); err == nil { // or the reset came first
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	eventually(t, "not all were decided", func() bool { return r.counted(decisions.Limited) == 17 })
	if open := r.Open(); open != 3 {
		t.Errorf("%d are open", open)
	}
	close(busy)
}

// TestALoopThatIsGone: connections that would have been its are reset, once, and the others served.
func TestALoopThatIsGone(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	r := newRig(t, 1, 0, nil)
	gone := r.loops[1]
	gone.Post(gone.Stop)
	eventually(t, "it does not end", func() bool { return !gone.Post(func() {}) })
	for range 10 {
		if c, err := net.Dial("tcp", r.tls); err == nil { // or the reset came first
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	served := func() int {
		sessions := make(chan int)
		r.loops[0].Post(func() { sessions <- len(r.loops[0].Sessions()) })
		return <-sessions
	}
	eventually(t, "half of them are not open", func() bool { return served() == 5 && r.Open() == 5 })

	s := r.newSession(t.Context(), gone, boundSocket(t), loopback)
	s.Reset()
	s.Reset()
	if open := r.Open(); open != 5 {
		t.Errorf("%d are open", open)
	}
}

// boundSocket is the descriptor of a socket that has an address. It is its caller's.
func boundSocket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: loopback.As4()}); err != nil {
		t.Fatal(err)
	}
	return fd
}
