package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

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
		if grown > count*size {
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

// What servers send to connections that nobody reads stays with the servers: the kernel's memory is a budget's.
func TestEgressOfSlowReaders(t *testing.T) {
	const count, each = 100, 640 << 10
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.smallHost(t, map[string]string{"tcp_mem": "16384 32768 65536"}) // 64 MiB
		l.traveller(t, w, "slow")
		at := netip.AddrPortFrom(w.fresh(), 443)
		var taken, full atomic.Int64
		if err := w.Serve(at, func(c *net.TCPConn) {
			_ = c.SetWriteBuffer(32 << 10)
			_, _ = c.Read(make([]byte, 4<<10))
			for block, idle := append([]byte{21, 3, 3, 0, 2, 1, 0}, make([]byte, 16<<10)...), 0; idle < 3; { // until nothing more is taken
				_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
				n, err := c.Write(block)
				if taken.Add(int64(n)); n == 0 && err != nil {
					idle++
				}
			}
			full.Add(1)
			_, _ = io.Copy(io.Discard, c)
		}); err != nil {
			t.Fatal(err)
		}
		name := w.name(t, "slow", at.Addr())
		r := l.runs(t, "slow", name, "waits", speaking+`
kept = []
for i in range(count):
    s = connect(443, 16384)
    s.sendall(hello())
    kept.append(s)
print("waits", flush=True)
sys.stdin.read()
`, name, fmt.Sprint(count))
		eventually(t, "all are full", func() bool { return full.Load() == count })
		t.Logf("%d connections have taken %d MiB", count, taken.Load()>>20)
		if taken.Load() > count*each {
			t.Errorf("that is more than %d MiB", count*each>>20)
		}
		r.end(t)
	})
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

// A user has a share of the ports towards an address. Those that the kernel keeps, because the server did not end its
// connections, count on.
func TestEgressOfPorts(t *testing.T) {
	const ports, count = 400, 300
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.smallHost(t, map[string]string{"ip_local_port_range": fmt.Sprint(20_000, 20_000+ports-1)})
		l.traveller(t, w, "many")
		l.traveller(t, w, "few")
		at := netip.AddrPortFrom(w.fresh(), 443)
		if err := w.Serve(at, alert); err != nil {
			t.Fatal(err)
		}
		name := w.name(t, "ports", at.Addr())
		script := speaking + `
let = 0
for i in range(count):
    try:
        s = connect(443)
        s.sendall(hello())
        let += len(s.recv(7)) == 7
        s.close()
    except OSError: pass
print("let", let, flush=True)
sys.stdin.read()
`
		r := l.runs(t, "many", name, "let", script, name, fmt.Sprint(count))
		r.end(t)
		var let int
		if _, err := fmt.Sscanf(r.out.String(), "let %d", &let); err != nil || let < ports/16 {
			t.Errorf("%s: %v", r.out, err)
		}
		kept := strings.Count(l.place.command(t, "ss", "-Htan", "dst", at.Addr().String()), "\n")
		t.Logf("%d of %d connections were let through, and %d ports are kept", let, count, kept)
		if kept > ports/3 {
			t.Errorf("that is more than a third of %d", ports)
		}
		other := l.runs(t, "few", name, "let", script, name, "1")
		other.end(t)
		if !strings.Contains(other.out.String(), "let 1") {
			t.Errorf("another user: %s", other.out)
		}
		told, err := l.client.Decisions(t.Context(), client.DecisionQuery{UserID: "many", Verdict: types.VerdictLimited})
		if err != nil || len(told) == 0 || !strings.HasPrefix(told[0].Reason, "budget used up") {
			t.Errorf("%+v, %v", told, err)
		}
	})
}

// alert is a server that says something to who says hello, and waits for the other's end.
func alert(c *net.TCPConn) {
	_, _ = c.Read(make([]byte, 4<<10))
	_, _ = c.Write([]byte{21, 3, 3, 0, 2, 1, 0})
	_, _ = io.Copy(io.Discard, c)
}

// drain reads what comes on all of a script's connections.
const drain = speaking + `
import selectors
ready, silent = selectors.DefaultSelector(), set()
ready.register(sys.stdin, selectors.EVENT_READ)
for i in range(count):
    s = connect(443)
    s.sendall(hello())
    silent.add(s)
    ready.register(s, selectors.EVENT_READ)
told = False
while True:
    for key, _ in ready.select():
        if key.fileobj is sys.stdin: sys.exit()
        if not key.fileobj.recv(1 << 18): sys.exit("ended")
        silent.discard(key.fileobj)
    if not silent and not told: told = print("busy", flush=True) or True
`

// Turns go by user: one that has many busy connections gets little more than one that has a single one.
func TestEgressHasTurnsOfUsers(t *testing.T) {
	const many, enough, most = 150, 8 << 20, 30
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "crowd")
		l.traveller(t, w, "single")
		serve := func() (string, *atomic.Int64) {
			at, sent := netip.AddrPortFrom(w.fresh(), 443), &atomic.Int64{}
			if err := w.Serve(at, func(c *net.TCPConn) {
				_, _ = c.Read(make([]byte, 4<<10))
				for block := append([]byte{21, 3, 3, 0, 2, 1, 0}, make([]byte, 64<<10)...); ; {
					n, err := c.Write(block)
					if sent.Add(int64(n)); err != nil {
						return
					}
				}
			}); err != nil {
				t.Fatal(err)
			}
			return w.name(t, "turns", at.Addr()), sent
		}
		crowded, toCrowd := serve()
		single, toSingle := serve()
		crowd := l.runs(t, "crowd", crowded, "busy", drain, crowded, fmt.Sprint(many))
		one := l.runs(t, "single", single, "busy", drain, single, "1")
		crowdBegan, oneBegan := toCrowd.Load(), toSingle.Load()
		began := time.Now()
		eventually(t, "the single connection has brought enough", func() bool { return toSingle.Load()-oneBegan > enough })
		theirs, its := toCrowd.Load()-crowdBegan, toSingle.Load()-oneBegan
		t.Logf("in %v: %d MiB to %d connections, %d MiB to one", time.Since(began), theirs>>20, many, its>>20)
		if theirs > most*its {
			t.Errorf("that is more than %d times as much", most)
		}
		one.end(t)
		crowd.end(t)
	})
}

// Who sends a malformed body is named, the client or the server.
func TestEgressOfMalformedBodies(t *testing.T) {
	const body = "3\r\nabc\r\nnonsense\r\n"
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "bodies")
		at := netip.AddrPortFrom(w.fresh(), 80)
		if err := w.Serve(at, func(c *net.TCPConn) {
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err != nil {
				return
			}
			if r.Method == http.MethodPost { // it takes the body, whatever that is
				_, _ = io.Copy(io.Discard, r.Body)
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"+body)
		}); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			whose, request string
			want, never    types.Verdict
		}{
			{"clients", `POST / HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n` + strings.ReplaceAll(body, "\r\n", `\r\n`), types.VerdictMalformed, types.VerdictFailed},
			{"servers", `GET / HTTP/1.1\r\nHost: %s\r\n\r\n`, types.VerdictFailed, types.VerdictMalformed},
		} {
			name := w.name(t, c.whose, at.Addr())
			r := l.runs(t, "bodies", name, "got", speaking+`
s = connect(80)
s.sendall(b"`+c.request+`" % name.encode())
try:
    while s.recv(1000): pass
except OSError: pass
print("got", flush=True)
`, name, "1")
			r.end(t)
			verdicts := map[types.Verdict]bool{}
			eventually(t, "the log of decisions tells of "+c.whose, func() bool {
				told, err := l.client.Decisions(t.Context(), client.DecisionQuery{UserID: "bodies", Name: name})
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range told {
					verdicts[d.Verdict] = true
				}
				return verdicts[c.want] || verdicts[c.never]
			})
			if !verdicts[c.want] || verdicts[c.never] {
				t.Errorf("the %s: %v", c.whose, verdicts)
			}
		}
	})
}

// What a container has the kernel track is bounded: the host's table is everybody's.
func TestEgressOfTrackedFlows(t *testing.T) {
	const most, count = 50, 1000
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "flows")
		l.traveller(t, w, "other")
		to := netip.AddrPortFrom(w.fresh(), 9999)
		if err := w.ListenUDP(to); err != nil {
			t.Fatal(err)
		}
		succeeds(t, l.reach(t, "flows", fmt.Sprintf(`python3 -c 'import socket
for i in range(%d):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try: s.sendto(b"x", ("%s", %d))
    except OSError: pass'`, count, to.Addr(), to.Port()), "*"))
		from := l.addressOf(t, l.containerOf(t, "flows").ID)
		var flows []*netlink.ConntrackFlow
		if err := l.place.do(func() (err error) {
			flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		tracked := 0
		for _, flow := range flows {
			if flow.Forward.SrcIP.String() == from {
				tracked++
			}
		}
		t.Logf("%d of %d flows are tracked", tracked, count)
		if tracked == 0 || tracked > 2*most {
			t.Errorf("want at most %d", most)
		}
		if got := succeeds(t, l.reach(t, "other", hello("http://"+w.shared.String()), "*")); !strings.HasPrefix(got, "hello from") {
			t.Errorf("another user: %q", got)
		}
	}, "SANDBOXD_EGRESS_MAX_CONNECTIONS=50")
}
