package guard

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/fair"
)

// TestMain is also the program that measures memory: a guard alone in a process, so that what the
// tests' own ends of the connections take is not counted.
func TestMain(m *testing.M) {
	if ports := os.Getenv("GUARD_ALONE"); ports != "" {
		if err := alone(ports); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if what := os.Getenv("GUARD_LOAD"); what != "" {
		if err := load(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// ownSource is a client whose names have its own address.
type ownSource struct{ *fakeClient }

func (s ownSource) Resolve(context.Context, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr(s.user)}, nil
}

// alone guards for the given origin ports until stdin ends. Each source is a user, whose name has the same address.
func alone(ports string) error {
	var secure, plain uint16
	if _, err := fmt.Sscan(ports, &secure, &plain); err != nil {
		return err
	}
	var listeners [2]*net.TCPListener
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		listeners[i] = l.(*net.TCPListener)
	}
	var users sync.Map
	limits := DefaultLimits()
	limits.HTTPConnections, limits.Undecided = 4096, 4096
	g, err := New(Config{
		TLS: listeners[0], TLSPort: secure, HTTP: listeners[1], HTTPPort: plain,
		Network: &fakeNetwork{
			client: func(a netip.Addr) (Client, bool) {
				client, _ := users.LoadOrStore(a, &fakeClient{user: a.String(), names: []string{"allowed.example"}, done: make(chan struct{})})
				return ownSource{client.(*fakeClient)}, true
			},
			mayConnect: func(netip.Addr) bool { return true },
		},
		Limits: limits,
		Budget: &budget.Connections{
			Descriptors: fair.NewPool(1<<20, 0), Hellos: fair.NewPool(1<<30, 8<<20), Buffers: fair.NewPool(budget.TCPMemory(), 0),
			Ports: budget.NewPorts(1 << 20),
		},
		Logger: zerolog.New(os.Stderr),
	})
	if err != nil {
		return err
	}
	if err := g.Start(context.Background()); err != nil {
		return err
	}
	fmt.Println(listeners[0].Addr(), listeners[1].Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return g.Shutdown(context.Background())
}

// process is a guard that runs alone.
type process struct {
	pid        int
	tls, plain string
	said       *bufio.Reader // its log
}

func startAlone(t testing.TB, secure, plain uint16) process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GUARD_ALONE=%d %d", secure, plain))
	log, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	p := process{pid: cmd.Process.Pid, said: bufio.NewReader(log)}
	if _, err := fmt.Fscan(out, &p.tls, &p.plain); err != nil {
		said, _ := io.ReadAll(p.said)
		t.Fatalf("%v: %s", err, said)
	}
	return p
}

// resident is how much memory the process has, in bytes.
func (p process) resident(t testing.TB) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

func (p process) descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestIdleConnectionsAreCheap: 2,000 of TLS that have talked and wait now cost less than 60 MB, and
// so do as many of HTTP as one client may have; net/http holds some 40 KB for each.
func TestIdleConnectionsAreCheap(t *testing.T) {
	const most = 60_000_000
	hello := records(message(named("allowed.example")), maxRecord)
	port, origin := rawOrigin(t)
	go func() { // a server that answers every hello with one record, and then echoes
		for c := range origin {
			go func() {
				_, _ = io.ReadFull(c, make([]byte, len(hello)))
				_, _ = c.Write([]byte{21, 3, 3, 0, 2, 1, 0})
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	web := httpOriginText(t, "hello")
	for _, c := range []struct {
		count            int
		what, send, want string
		addr             func(process) string
	}{
		{2000, "TLS", string(hello) + "ping", "\x15\x03\x03\x00\x02\x01\x00ping", func(p process) string { return p.tls }},
		{DefaultLimits().HTTPConnections, "HTTP", "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n", "hello", func(p process) string { return p.plain }},
	} {
		p := startAlone(t, port, web)
		before, fds := p.resident(t), p.descriptors(t)
		for range c.count {
			conn := dial(t, c.addr(p))
			_, _ = io.WriteString(conn, c.send)
			if c.what == "HTTP" {
				if status, body := answer(t, bufio.NewReader(conn), "GET"); status != 200 || body != c.want {
					t.Fatalf("%d %q", status, body)
				}
				continue
			}
			got := make([]byte, len(c.want))
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != c.want {
				t.Fatalf("%q, %v", got, err)
			}
		}
		grown := p.resident(t) - before
		t.Logf("%s: %d idle connections take %.1f MB and %d descriptors", c.what, c.count, float64(grown)/1e6, p.descriptors(t)-fds)
		if grown > most && !raceEnabled {
			t.Errorf("%s: that is more than %d MB", c.what, most/1_000_000)
		}
	}
}

// TestAGigabyteNeedsNoMemory: 1 GiB each way.
func TestAGigabyteNeedsNoMemory(t *testing.T) {
	const size = 1 << 30
	port, origin := rawOrigin(t)
	p := startAlone(t, port, port)
	before := p.resident(t)
	c := dial(t, p.tls)
	hello := records(message(named("allowed.example")), maxRecord)
	_, _ = c.Write(hello)
	o := take(t, origin)
	_, _ = io.ReadFull(o, make([]byte, len(hello)))
	_, _ = o.Write([]byte{21, 3, 3, 0, 2, 1, 0})
	_, _ = io.ReadFull(c, make([]byte, 7))
	for _, end := range []*net.TCPConn{c, o} {
		_ = end.SetDeadline(time.Now().Add(5 * time.Minute)) // a busy machine may take its time
	}
	for what, way := range map[string][2]*net.TCPConn{"up": {c, o}, "down": {o, c}} {
		go func() {
			block := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
			for range size / len(block) {
				_, _ = way[0].Write(block)
			}
			_ = way[0].CloseWrite()
		}()
		if n, err := io.Copy(io.Discard, way[1]); n != size || err != nil {
			t.Errorf("%s: %d bytes, %v", what, n, err)
		}
	}
	grown := p.resident(t) - before
	t.Logf("2 GiB took %.1f MB", float64(grown)/1e6)
	if grown > 8<<20 && !raceEnabled {
		t.Error("that is not constant memory")
	}
}
