package e2e

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// speaking begins scripts that speak the first words of TLS themselves. A script that has done what it does says so, and goes on
// until its standard input ends.
const speaking = `
import socket, struct, sys, threading, time
name, count = sys.argv[1], int(sys.argv[2])
addr = socket.gethostbyname(name)
def sized(b, width): return len(b).to_bytes(width, "big") + b
def hello(padding=0):
    extensions = b"\0\0" + sized(sized(b"\0" + sized(name.encode(), 2), 2), 2)
    if padding: extensions += b"\0\x15" + sized(bytes(padding), 2)
    body = b"\3\3" + bytes(32) + b"\0" + sized(b"\x13\1", 2) + sized(b"\0", 1) + sized(extensions, 2)
    m = b"\1" + sized(body, 3)
    return b"".join(b"\x16\3\1" + sized(m[i:i+16384], 2) for i in range(0, len(m), 16384))
def connect(port, buffer=0):
    s = socket.socket()
    if buffer: s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    s.settimeout(60)
    s.connect((addr, port))
    return s
def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
`

// running is a script that goes on until its standard input ends.
type running struct {
	out   *lockedBuffer
	stdin *io.PipeWriter
	ended chan error
}

// runs starts a script of Python's that may reach a name, and waits until it has said a word.
func (l *lab) runs(t *testing.T, user, name, word, script string, args ...string) *running {
	t.Helper()
	l.put(t, user, "script.py", script)
	stdin, in := io.Pipe()
	r := &running{out: &lockedBuffer{}, stdin: in, ended: make(chan error, 1)}
	go func() {
		_, err := l.client.Attach(t.Context(), user, types.Exec{
			Argv:        append([]string{"python3", "/home/script.py"}, args...),
			Permissions: []string{"@network"}, AllowedDomains: []string{name}, TimeoutMs: unhurried,
		}, client.Streams{Stdin: stdin, Stdout: r.out, Stderr: r.out})
		r.ended <- err
	}()
	r.says(t, word)
	return r
}

// says waits until it has said a word.
func (r *running) says(t *testing.T, word string) {
	t.Helper()
	eventually(t, "it says "+word, func() bool {
		if strings.Contains(r.out.String(), "Traceback") {
			t.Fatal(r.out)
		}
		return strings.Contains(r.out.String(), word)
	})
}

func (r *running) end(t *testing.T) {
	t.Helper()
	_ = r.stdin.Close()
	if err := <-r.ended; err != nil || strings.Contains(r.out.String(), "Traceback") {
		t.Errorf("%v: %s", err, r.out)
	}
}

// smallHost has sandboxd find other numbers below /proc/sys/net/ipv4 than the host has: budgets are parts of those.
func (l *lab) smallHost(t *testing.T, numbers map[string]string) {
	t.Helper()
	l.stop(syscall.SIGTERM)
	script := "mount --make-rprivate /proc"
	for name, number := range numbers {
		file := l.path(name)
		if err := os.WriteFile(file, []byte(number+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		script += " && mount --bind " + file + " /proc/sys/net/ipv4/" + name
	}
	l.wrap = []string{"unshare", "--mount", "--propagation", "unchanged", "sh", "-c", script + ` && exec "$0" "$@"`}
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
}

// Hellos of 60 KB of one container, whose server has them and does not answer, are not kept.
func TestEgressOfLargeHellos(t *testing.T) {
	const count, size = 600, 60_000
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "large")
		at := netip.AddrPortFrom(w.fresh(), 443)
		var arrived atomic.Int64
		if err := w.Serve(at, func(c *net.TCPConn) {
			for p := make([]byte, 16<<10); ; {
				n, err := c.Read(p)
				if arrived.Add(int64(n)); err != nil {
					return
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		name := w.name(t, "large", at.Addr())
		succeeds(t, l.reach(t, "large", "true", name)) // with all that a first call brings
		before := resident(t, l.daemon.Process.Pid)
		// Too many at once are refused, and said again.
		r := l.runs(t, "large", name, "begun", speaking+`
ended, kept = threading.Event(), []
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
print("begun", flush=True)
while not ended.wait(0.001):
    try:
        s = connect(443)
        s.sendall(hello(`+fmt.Sprint(size)+`))
        kept.append(s)
    except OSError: pass
    if len(kept) > 2 * count: kept.pop(0).close()
`, name, fmt.Sprint(count))
		eventually(t, "the server has all of them", func() bool { return arrived.Load() >= count*size })
		grown := resident(t, l.daemon.Process.Pid) - before
		t.Logf("%d MiB of hellos, %d MiB more memory", count*size>>20, grown>>20)
		if grown > count*size*3/2 { // to keep them takes more than twice as much
			t.Error("the service keeps what the server has")
		}
		r.end(t)
	})
}

// resident is how much memory a process has, in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// What servers send to connections that nobody reads stays with the servers: the kernel's memory is a budget's. So it is at
// a port that an operator has opened.
func TestEgressOfSlowReaders(t *testing.T) {
	const count, each = 100, 640 << 10
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.smallHost(t, map[string]string{"tcp_mem": "16384 32768 65536"}) // 64 MiB
		l.traveller(t, w, "slow")
		addr := w.fresh()
		name := w.name(t, "slow", addr)
		for _, port := range []uint16{443, 2222} {
			var taken, full atomic.Int64
			if err := w.Serve(netip.AddrPortFrom(addr, port), func(c *net.TCPConn) {
				taken.Add(fill(c))
				full.Add(1)
				_, _ = io.Copy(io.Discard, c)
			}); err != nil {
				t.Fatal(err)
			}
			r := l.runs(t, "slow", name, "waits", speaking+`
kept = []
for i in range(count):
    s = connect(int(sys.argv[3]), 16384)
    s.sendall(hello())
    kept.append(s)
print("waits", flush=True)
sys.stdin.read()
`, name, fmt.Sprint(count), fmt.Sprint(port))
			eventually(t, "all are full", func() bool { return full.Load() == count })
			t.Logf("%d connections to port %d have taken %d MiB", count, port, taken.Load()>>20)
			if taken.Load() > count*each {
				t.Errorf("that is more than %d MiB", count*each>>20)
			}
			r.end(t)
		}
	}, "SANDBOXD_EGRESS_EXTRA_PORTS=2222")
}

// fill sends to who has spoken until nothing more is taken, and returns how much that was.
func fill(c *net.TCPConn) (taken int64) {
	_ = c.SetWriteBuffer(32 << 10)
	_, _ = c.Read(make([]byte, 4<<10))
	block := append([]byte{21, 3, 3, 0, 2, 1, 0}, make([]byte, 16<<10)...)
	for idle := 0; idle < 3; {
		_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Write(block)
		if taken += int64(n); n == 0 && err != nil {
			idle++
		}
	}
	return taken
}

// A client that has gone ends its connection to a server that does not answer, and counts no more.
func TestEgressOfClientsThatHaveGone(t *testing.T) {
	const count = 10 // in each way
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "gone")
		addr := w.fresh()
		var came, ended atomic.Int64
		for _, port := range []uint16{80, 443} {
			if err := w.Serve(netip.AddrPortFrom(addr, port), func(c *net.TCPConn) {
				came.Add(1)
				_, _ = io.Copy(io.Discard, c)
				ended.Add(1)
			}); err != nil {
				t.Fatal(err)
			}
		}
		name := w.name(t, "gone", addr)
		r := l.runs(t, "gone", name, "said", speaking+`
kept = []
for end in (socket.socket.close, reset):
    for i in range(count):
        s = connect(443)
        s.sendall(hello())
        kept.append((s, end))
for i in range(count):
    s = connect(80)
    s.sendall(b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % name.encode())
    kept.append((s, reset))
print("said", flush=True)
sys.stdin.readline()
for s, end in kept: end(s)
print("gone", flush=True)
sys.stdin.read()
`, name, fmt.Sprint(count))
		eventually(t, "all have come", func() bool { return came.Load() == 3*count })
		_, _ = io.WriteString(r.stdin, "\n")
		r.says(t, "gone")
		// Until a minute is over a server may still answer.
		eventuallyWithin(t, 30*time.Second, "their connections have ended", func() bool { return ended.Load() == 3*count })
		r.end(t)
	})
}

// What a server has sent and the client does not take counts as a connection, also when both have ended theirs: the
// kernel has it.
func TestEgressOfUntakenAnswers(t *testing.T) {
	const count, size = 10, 48 << 10
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "untaken")
		addr := w.fresh()
		var done atomic.Int64
		for port, says := range map[uint16]string{443: "\x15\x03\x03\x00\x02\x01\x00", 80: "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"} {
			if err := w.Serve(netip.AddrPortFrom(addr, port), func(c *net.TCPConn) {
				_, _ = c.Read(make([]byte, 4<<10))
				_, _ = io.WriteString(c, says+strings.Repeat("x", size))
				_ = c.CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				done.Add(1)
			}); err != nil {
				t.Fatal(err)
			}
		}
		name := w.name(t, "untaken", addr)
		r := l.runs(t, "untaken", name, "waits", speaking+`
kept = []
for port, words in ((443, hello()), (80, b"GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % name.encode())):
    for i in range(count):
        s = connect(port, 4096)
        s.sendall(words)
        s.recv(1)
        s.shutdown(socket.SHUT_WR)
        kept.append(s)
print("waits", flush=True)
sys.stdin.read()
`, name, fmt.Sprint(count))
		eventually(t, "the servers have done with all", func() bool { return done.Load() == 2*count })
		inspected, err := l.engine.ContainerInspect(t.Context(), l.gatewayOf(t).ID)
		if err != nil {
			t.Fatal(err)
		}
		held := 0
		for line := range strings.Lines(l.place.command(t, "nsenter", "-t", fmt.Sprint(inspected.State.Pid), "-n", "ss", "-Htn")) {
			var state string
			var received, unsent int
			if _, err := fmt.Sscan(line, &state, &received, &unsent); err == nil && unsent > size/4 {
				held++
			}
		}
		open := int(l.metric(t, `sandboxd_egress_connections{profile="isolated"}`))
		t.Logf("the kernel holds answers of %d connections, and %d count", held, open)
		if held == 0 || open < held {
			t.Error("what the kernel holds does not count")
		}
		r.end(t)
		eventually(t, "none counts", func() bool { return l.metric(t, `sandboxd_egress_connections{profile="isolated"}`) == 0 })
	})
}
