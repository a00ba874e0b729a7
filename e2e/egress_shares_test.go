package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

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
		// Enough comes in a tenth of a second. While the single one's program does not run, on a busy machine, all turns are the
		// others', so that is measured again.
		eventually(t, fmt.Sprintf("many connections bring at most %d times as much as the single one", most), func() bool {
			crowdBegan, oneBegan := toCrowd.Load(), toSingle.Load()
			began := time.Now()
			eventually(t, "the single connection has brought enough", func() bool { return toSingle.Load()-oneBegan > enough })
			theirs, its := toCrowd.Load()-crowdBegan, toSingle.Load()-oneBegan
			t.Logf("in %v: %d MiB to %d connections, %d MiB to one", time.Since(began), theirs>>20, many, its>>20)
			return theirs <= most*its
		})
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
			eventuallyWithin(t, 30*time.Second, "the log of decisions tells of "+c.whose, func() bool {
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
		if tracked < most*3/4 || tracked > most*5/4 {
			t.Errorf("want %d", most)
		}
		if got := succeeds(t, l.reach(t, "other", hello("http://"+w.shared.String()), "*")); !strings.HasPrefix(got, "hello from") {
			t.Errorf("another user: %q", got)
		}
	}, "SANDBOXD_EGRESS_MAX_CONNECTIONS=50")
}
