package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/e2e/inet"
)

// A call reaches what it names, by HTTP and HTTPS, and nothing else; what it did not reach is told.
func TestEgressByName(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "byname")
		allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
		for _, scheme := range []string{"http://", "https://"} {
			if got := succeeds(t, l.reach(t, "byname", hello(scheme+allowed), allowed)); got != "hello from "+allowed {
				t.Errorf("%s: %q", scheme, got)
			}
		}
		if n := len(w.arrivals(allowed)); n != 2 {
			t.Errorf("%d requests arrived, not 2", n)
		}
		// Without an answer the resolver would wait for longer than curl does, whose word is then another.
		out := l.reach(t, "byname", "RES_OPTIONS='timeout:30 attempts:5' curl -sS --max-time 60 https://"+denied+"/hello; echo code $?", allowed)
		if !strings.Contains(out.Stdout, "code 6") { // curl's word for a name that does not resolve
			t.Errorf("denied: %q %q", out.Stdout, out.Stderr)
		}
		if verdict, count := refused(out, denied); verdict != "denied" || count == 0 {
			t.Errorf("the result tells %+v", out.Egress)
		}
		if n := w.DNS.Asked(denied); n != 0 {
			t.Errorf("the denied name was asked for %d times outside", n)
		}
		if out := l.reach(t, "byname", hello("https://"+allowed), allowed); len(out.Egress) != 0 {
			t.Errorf("a call that was refused nothing tells %+v", out.Egress)
		}
		// Without the grant there is not even an interface.
		if got := l.sh(t, "byname", "ls /sys/class/net 2>/dev/null | grep -v '^lo$' | wc -l; curl -sS --max-time 10 http://"+allowed+" >/dev/null 2>&1; echo code $?"); !strings.HasPrefix(got, "0\ncode 6") {
			t.Errorf("without @network: %q", got)
		}
	})
}

// What is asked at the API: each row of the table of grants and names.
func TestEgressOfRequests(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "table")
		l.registerAs(t, "tableless", types.Registration{UserID: "table"})
		for _, c := range []struct {
			name, sandbox string
			e             types.Exec
			kind          types.Kind
			want          string
		}{
			{"names without the grant", "table", types.Exec{AllowedDomains: []string{"example.org"}}, types.Denied, "allowedDomains needs @network"},
			{"presets without the grant", "table", types.Exec{PackageManagers: []string{"node"}}, types.Denied, "packageManagers needs @network"},
			{"the grant without a name", "table", types.Exec{Permissions: []string{"@network"}}, types.Invalid, "@network needs a domain"},
			{"an empty list", "table", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{}}, types.Invalid, "@network needs a domain"},
			{"a sandbox that does not hold it", "tableless", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"example.org"}}, types.Denied, "@network"},
			{"an address", "table", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"198.51.100.10"}}, types.Invalid, "198.51.100.10"},
			{"all of a suffix", "table", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"*.com"}}, types.Invalid, "*.com"},
			{"a scheme", "table", types.Exec{Permissions: []string{"@network"}, AllowedDomains: []string{"https://example.org"}}, types.Invalid, "https://example.org"},
			{"an unknown preset", "table", types.Exec{Permissions: []string{"@network"}, PackageManagers: []string{"npm"}}, types.Invalid, "npm"},
			{"neither", "table", types.Exec{Permissions: []string{}}, "", ""},
		} {
			c.e.Command = "true"
			_, err := l.client.Exec(t.Context(), c.sandbox, c.e)
			if kindOf(err) != c.kind || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	})
}

func TestEgressWildcards(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "wild")
		apex := w.name(t, "apex", w.shared)
		below, deep, beside := "a."+apex, "a.b."+apex, "evil"+apex
		for _, name := range []string{below, deep, beside} {
			w.DNS.SetA(name, time.Minute, w.shared)
		}
		for name, ok := range map[string]bool{below: true, deep: true, apex: false, beside: false, strings.ToUpper(below): true, below + ".": true} {
			out := l.reach(t, "wild", hello("http://"+name), "*."+apex)
			if out.Failed == ok {
				t.Errorf("%s: %s %q %q", name, exitText(out), out.Stdout, out.Stderr)
			}
		}
		// A name beyond ASCII is the one that DNS knows it by.
		idna := "xn--bcher-kva." + apex
		w.DNS.SetA(idna, time.Minute, w.shared)
		if got := succeeds(t, l.reach(t, "wild", hello("http://"+idna), "Bücher."+apex+".")); got != "hello from "+idna {
			t.Errorf("%q", got)
		}
	})
}

// Open reaches all that is public, by address and on any port, and still nothing of the host or of
// private networks; an operator may forbid it.
func TestEgressOpen(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "open")
		port := netip.AddrPortFrom(w.fresh(), 5432)
		if err := w.Listen(port); err != nil {
			t.Fatal(err)
		}
		capture, private := w.capture(t), w.private(t)
		out := l.reach(t, "open", dial(port)+"; "+hello("http://"+w.other.String())+"; for a in "+private.String()+" "+w.metadata.String()+"; do curl -s --max-time 3 http://$a/hello; done; true", "*")
		if want := "connected\nhello from " + w.other.String(); strings.TrimSpace(out.Stdout) != want {
			t.Errorf("%q %q, want %q", out.Stdout, out.Stderr, want)
		}
		for _, addr := range []netip.Addr{private, w.metadata} {
			if n := seen(t, capture, addr); n != 0 {
				t.Errorf("%d packets came to %s", n, addr)
			}
		}
	})
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "open")
		_, err := l.client.Exec(t.Context(), "open", types.Exec{Command: "true", Permissions: []string{"@network"}, AllowedDomains: []string{"*"}})
		if kindOf(err) != types.Denied || !strings.Contains(err.Error(), `"*" is forbidden`) {
			t.Errorf("%v", err)
		}
	}, "SANDBOXD_EGRESS_ALLOW_GLOBAL_WILDCARD=false")
}

// dial is a command that says whether a TCP connection came about.
func dial(to netip.AddrPort) string {
	return fmt.Sprintf(`python3 -c 'import socket
try:
    socket.create_connection(("%s", %d), 5).close(); print("connected")
except OSError as e: print("refused", e)'`, to.Addr(), to.Port())
}

// seen is how many packets a capture has of what went to an address.
func seen(t *testing.T, c *inet.Capture, to netip.Addr) int {
	t.Helper()
	if err := c.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c.Seen(inet.Flow{Dst: to})
}

// Whatever a program does that may reach one name, it reaches no other address.
func TestEgressWaysAround(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "around")
		allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
		forbidden := w.origin(t)
		for _, port := range []uint16{22, 53, 853, 8443} {
			if err := w.Listen(netip.AddrPortFrom(forbidden, port)); err != nil {
				t.Fatal(err)
			}
		}
		for _, port := range []uint16{53, 443, 9999} {
			if err := w.ListenUDP(netip.AddrPortFrom(forbidden, port)); err != nil {
				t.Fatal(err)
			}
		}
		host, heard := hostListener(t, l.place)
		capture := w.capture(t)
		script := fmt.Sprintf(`
import socket, ssl, subprocess, sys
forbidden, allowed, denied = %q, %q, %q
def tcp(addr, port, say=b"x"):
    try:
        s = socket.create_connection((addr, port), 3)
        s.settimeout(3)
        s.sendall(say)
        return repr(s.recv(200))
    except OSError as e:
        return type(e).__name__
def udp(addr, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.3)
    try:
        s.sendto(b"question", (addr, port))
        return repr(s.recv(100))
    except OSError as e:
        return type(e).__name__
def sni(addr, name, patience=3):
    c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    try:
        s = c.wrap_socket(socket.create_connection((addr, 443), patience), server_hostname=name)
        s.settimeout(patience)
        s.sendall(("GET /hello HTTP/1.1\r\nHost: " + allowed + "\r\nConnection: close\r\n\r\n").encode())
        return repr(s.recv(2000)[-60:])
    except OSError as e:
        return type(e).__name__
for port in (22, 53, 853, 8443, 80, 443):
    print("tcp", port, tcp(forbidden, port))
for port in (53, 443, 9999):
    print("udp", port, udp(forbidden, port))
print("dns of others", udp(%q, 53), tcp(%q, 53))
print("no sni", sni(forbidden, None))
print("sni denied", sni(forbidden, denied))
print("address as host", tcp(forbidden, 80, ("GET /hello HTTP/1.1\r\nHost: " + forbidden + "\r\n\r\n").encode()))
print("connect", tcp(forbidden, 80, ("CONNECT " + allowed + ":443 HTTP/1.1\r\nHost: " + allowed + "\r\n\r\n").encode())[:60])
for addr in %q.split():
    print("host", addr, tcp(addr, %d))
try:
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM); s.settimeout(2); s.connect(("2001:db8::1", 443)); print("ipv6 connected")
except OSError as e:
    print("ipv6", type(e).__name__)
# Last, and paired with all of it: the allowed name, dialled at the forbidden address.
print("allowed", sni(forbidden, allowed, 20))
`, forbidden, allowed, denied, w.DNSServers()[1], w.DNSServers()[1], hostAddresses(t, l.place), host)
		l.put(t, "around", "around.py", script)
		out := l.reach(t, "around", "python3 /home/around.py", allowed)
		text := succeeds(t, out)
		if n := seen(t, capture, forbidden); n != 0 {
			t.Errorf("%d packets came to the forbidden address: %v\n%s", n, capture.Packets(), text)
		}
		if n := heard(); n != 0 {
			t.Errorf("the host was reached %d times\n%s", n, text)
		}
		if !strings.Contains(text, "hello from "+allowed) || strings.Count(text, "hello from") != 1 {
			t.Errorf("the allowed name, and it alone:\n%s", text)
		}
		if n := w.DNS.Asked(denied); n != 0 {
			t.Errorf("the denied name was asked for outside")
		}
		if strings.Contains(text, "ipv6 connected") {
			t.Error(text)
		}
		if verdict, _ := refused(out, denied); verdict != "denied" {
			t.Errorf("the result tells %+v", out.Egress)
		}
	})
}

// hostListener listens on every address of the host, and counts who comes.
func hostListener(t *testing.T, p *place) (port int, heard func() int) {
	t.Helper()
	var listener net.Listener
	err := p.do(func() (err error) {
		listener, err = net.Listen("tcp", ":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	count := make(chan int, 1)
	count <- 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
			count <- <-count + 1
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().(*net.TCPAddr).Port, func() int {
		n := <-count
		count <- n
		return n
	}
}

// hostAddresses are all IPv4 addresses of the host, in a line.
func hostAddresses(t *testing.T, p *place) string {
	t.Helper()
	var addrs []net.Addr
	err := p.do(func() (err error) {
		addrs, err = net.InterfaceAddrs()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			list = append(list, ip.IP.String())
		}
	}
	return strings.Join(list, " ")
}

// Allowed names do not lead to addresses that nobody may reach, whoever answers for them.
func TestEgressRebinding(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "rebind")
		l.traveller(t, w, "local")
		_, heard := hostListener(t, l.place)
		gateway := netip.MustParseAddr(strings.Fields(hostAddresses(t, l.place))[0])
		privateAddr := w.private(t)
		private, metadata := w.name(t, "private", privateAddr), w.name(t, "metadata", w.metadata)
		own, loop := w.name(t, "own", gateway), w.name(t, "loop", netip.MustParseAddr("127.0.0.1"))
		mixed := w.name(t, "mixed", w.metadata, w.shared, privateAddr)
		mapped := w.name(t, "mapped", netip.AddrFrom16(privateAddr.As16()))
		capture := w.capture(t)
		for _, name := range []string{private, metadata, own, loop, mapped} {
			for _, url := range []string{hello("http://" + name), hello("-f --resolve " + name + ":80:" + w.shared.String() + " http://" + name)} {
				if out := l.reach(t, "rebind", url, "*.example"); !out.Failed {
					t.Errorf("isolated: %s: %q", url, out.Stdout)
				}
			}
		}
		if got := succeeds(t, l.reach(t, "rebind", "getent ahostsv4 "+mixed+" | cut -d' ' -f1 | sort -u; "+hello("http://"+mixed), "*.example")); got != w.shared.String()+"\nhello from "+mixed {
			t.Errorf("mixed: %q", got)
		}
		for _, addr := range []netip.Addr{privateAddr, w.metadata} {
			if n := seen(t, capture, addr); n != 0 {
				t.Errorf("%d packets came to %s", n, addr)
			}
		}
		// A user with the profile local reaches private networks, and no further.
		if got := succeeds(t, l.reach(t, "local", hello("http://"+private), "*.example")); got != "hello from "+private {
			t.Errorf("local: %q", got)
		}
		for _, name := range []string{metadata, own, loop} {
			if out := l.reach(t, "local", hello("http://"+name), "*.example"); !out.Failed {
				t.Errorf("local: %s: %q", name, out.Stdout)
			}
		}
		if n := seen(t, capture, w.metadata) + heard(); n != 0 {
			t.Errorf("local: %d packets came to metadata or to the host", n)
		}
	})
}

// Only the name that is asked for decides: where an alias leads does not matter.
func TestEgressAliases(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "alias")
		target, alias := w.name(t, "target", w.shared), w.name(t, "alias")
		w.DNS.SetCNAME(alias, time.Minute, target)
		if got := succeeds(t, l.reach(t, "alias", hello("https://"+alias), alias)); got != "hello from "+alias {
			t.Errorf("%q", got)
		}
		if out := l.reach(t, "alias", hello("https://"+target), alias); !out.Failed {
			t.Errorf("the alias's target: %q", out.Stdout)
		}
	})
}

// Two names at one address: what the first bytes ask for decides, on each request.
func TestEgressSharedAddress(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "shared")
		allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
		at := w.shared.String()
		for _, c := range []struct {
			name, command, want string
			ok                  bool
		}{
			{"TLS, allowed", hello("--resolve " + allowed + ":443:" + at + " https://" + allowed), "hello from " + allowed, true},
			{"TLS, denied at the same address", hello("--resolve " + denied + ":443:" + at + " https://" + denied), "", false},
			{"HTTP, denied at the same address", "curl -sS -f --max-time 20 -H 'Host: " + denied + "' http://" + allowed + "/hello", "", false},
			{"HTTP, absolute URI", "curl -sS -f --max-time 20 --proxy http://" + at + ":80 http://" + denied + "/hello", "", false},
			{"HTTP, kept alive", "curl -sS --max-time 20 http://" + allowed + "/hello --next -sS -f --max-time 20 -H 'Host: " + denied + "' http://" + allowed + "/kept", "hello from " + allowed, false},
		} {
			out := l.reach(t, "shared", c.command, allowed)
			if out.Failed == c.ok || !strings.Contains(out.Stdout, c.want) {
				t.Errorf("%s: %s %q %q", c.name, exitText(out), out.Stdout, out.Stderr)
			}
		}
		if paths := w.arrivals(denied); len(paths) != 0 {
			t.Errorf("requests arrived for the denied name: %v", paths)
		}
	})
}

// Two calls of one user at the same time, one with a name and one without: neither shares what the other
// was granted, nor does what one leaves running.
func TestEgressIsOfTheCall(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "calls")
		first, second := w.name(t, "first", w.shared), w.name(t, "second", w.shared)
		type answer struct {
			out types.Output
			err error
		}
		done := make(chan answer, 1)
		go func() {
			out, err := l.client.Exec(t.Context(), "calls", types.Exec{
				Command: "until test -e /tmp/other-done; do sleep 0.1; done; " + hello("http://"+first), Permissions: []string{"@network"}, AllowedDomains: []string{first},
				TimeoutMs: unhurried,
			})
			done <- answer{out, err}
		}()
		if out := l.reach(t, "calls", hello("http://"+first), second); !out.Failed {
			t.Errorf("the second call reaches the first one's name: %q", out.Stdout)
		}
		if out := l.run(t, "calls", types.Exec{Command: hello("http://" + first)}); !out.Failed {
			t.Errorf("a call without @network reaches it: %q", out.Stdout)
		}
		succeeds(t, l.reach(t, "calls", hello("http://"+second)+" && touch /tmp/other-done", second))
		a := <-done
		if a.err != nil {
			t.Fatal(a.err)
		}
		succeeds(t, a.out)
	})
}

// A container that is gone has no way any more, and who gets its address next has only its own.
func TestEgressAddressReuse(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "reuse")
		first, second := w.name(t, "first", w.shared), w.name(t, "second", w.shared)
		// While a call runs its container is not idle, however long it takes to look at that.
		wait, end := io.Pipe()
		out, ended := &lockedBuffer{}, make(chan error, 1)
		go func() {
			_, err := l.client.Attach(t.Context(), "reuse", types.Exec{
				Command: hello("http://"+first) + "; read line", Permissions: []string{"@network"}, AllowedDomains: []string{first}, TimeoutMs: unhurried,
			}, client.Streams{Stdin: wait, Stdout: out})
			ended <- err
		}()
		eventually(t, "the call has reached it", func() bool { return strings.Contains(out.String(), "hello from "+first) })
		old := l.containersOf(t, "reuse")
		if len(old) != 1 {
			t.Fatalf("%d containers", len(old))
		}
		addr := l.addressOf(t, old[0].ID)
		if there := l.attached(t); !strings.Contains(there, addr+" dev") {
			t.Errorf("the container %s is not at its gateway: %s", addr, there)
		}
		_ = end.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		eventually(t, "the idle container is removed", func() bool { return len(l.containersOf(t, "reuse")) == 0 })
		eventually(t, "it is not at its gateway", func() bool { return !strings.Contains(l.attached(t), addr+" dev") })
		succeeds(t, l.reach(t, "reuse", hello("http://"+second), second))
		if out := l.reach(t, "reuse", hello("http://"+first), second); !out.Failed {
			t.Errorf("%q", out.Stdout)
		}
	}, "SANDBOXD_IDLE_REMOVE_AFTER=1s")
}

// What an operator opens beside HTTP and HTTPS is open at the allowed names alone.
func TestEgressExtraPorts(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "ports")
		here, there := w.fresh(), w.fresh()
		for _, addr := range []netip.Addr{here, there} {
			for _, port := range []uint16{22, 2222} {
				if err := w.Listen(netip.AddrPortFrom(addr, port)); err != nil {
					t.Fatal(err)
				}
			}
		}
		name, capture := w.name(t, "git", here), w.capture(t)
		text := succeeds(t, l.reach(t, "ports", strings.Join([]string{
			"getent ahostsv4 " + name + " >/dev/null", dial(netip.AddrPortFrom(here, 22)), dial(netip.AddrPortFrom(here, 2222)), dial(netip.AddrPortFrom(there, 22)),
		}, "\n"), name))
		// At the other address the service answers, and ends it.
		if lines := strings.Split(text, "\n"); len(lines) != 3 || lines[0] != "connected" || !strings.HasPrefix(lines[1], "refused") {
			t.Errorf("%q", text)
		}
		if n := seen(t, capture, there); n != 0 || seen(t, capture, here) == 0 {
			t.Errorf("%d packets came to where no name leads: %v", n, capture.Packets())
		}
	}, "SANDBOXD_EGRESS_EXTRA_PORTS=22")
}

// While the service is down nothing passes; when it is back, the same containers work again.
func TestEgressWhileTheServiceIsDown(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "down")
		at := w.origin(t) // which nobody else comes to
		name := w.name(t, "down", at)
		succeeds(t, l.reach(t, "down", hello("http://"+name), name))
		before := l.containersOf(t, "down")
		l.stop(syscall.SIGKILL)
		capture := w.capture(t)
		// Past the service: Docker runs it in the same container.
		text := ""
		eventually(t, "the agent has ended, which ends all that runs there", func() bool {
			text = l.inside(t, before[0].ID, "sh", "-c", "curl -sS --max-time 2 --resolve "+name+":80:"+at.String()+" http://"+name+"/hello & "+
				"curl -sS --max-time 2 -k --resolve "+name+":443:"+at.String()+" https://"+name+"/hello & timeout 2 getent hosts "+name+" & wait; echo end")
			return strings.Contains(text, "end")
		})
		if strings.Contains(text, "hello from") {
			t.Errorf("%q", text)
		}
		if n := seen(t, capture, at); n != 0 {
			t.Errorf("%d packets came while the service was down", n)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		out := l.reach(t, "down", hello("http://"+name), name)
		if got := succeeds(t, out); got != "hello from "+name || out.Cold {
			t.Errorf("%q, cold %t", got, out.Cold)
		}
		if after := l.containersOf(t, "down"); len(after) != 1 || after[0].ID != before[0].ID {
			t.Error("it is another container")
		}
	})
}

// Rules that someone flushed are put back; a network that someone changed is made anew.
func TestEgressRepairs(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "repair")
		name := w.name(t, "repair", w.shared)
		call := func() types.Output { return l.reach(t, "repair", hello("http://"+name), name) }
		succeeds(t, call())
		table := l.egress + "-isolated"
		good := l.place.nft(t, "-s", "-t", "list", "table", "inet", table)
		l.place.nft(t, "flush", "table", "inet", table)
		eventually(t, "the rules are back", func() bool { return l.place.nft(t, "-s", "-t", "list", "table", "inet", table) == good })
		eventually(t, "the log tells of the repair", func() bool { return strings.Contains(l.log.String(), "repaired") })
		succeeds(t, call())

		// The bridge loses its address: the next container notices.
		for _, spoil := range [][]string{{"addr", "flush", "dev", l.egress + "-iso"}, {"link", "del", l.egress + "-iso"}} {
			l.place.ip(t, spoil...)
			l.registerAs(t, "repair2", types.Registration{UserID: "repair2", Permissions: types.Permissions{Network: true}})
			if got := succeeds(t, l.reach(t, "repair2", hello("http://"+name), name)); got != "hello from "+name {
				t.Errorf("after %v: %q", spoil, got)
			}
			if got := succeeds(t, call()); got != "hello from "+name {
				t.Errorf("after %v, the first user: %q", spoil, got)
			}
			l.cool(t, "repair2")
		}
	})
}

// Who has got the rights to forge packets in a container still has its own address alone, and reaches no neighbour.
func TestEgressOfForgers(t *testing.T) {
	eachOutsideOwn(t, func(t *testing.T, l *lab, w *world) {
		for _, user := range []string{"victim", "forger"} {
			l.traveller(t, w, user)
		}
		name, forged := w.name(t, "ok", w.shared), w.name(t, "forged", w.other)
		succeeds(t, l.reach(t, "victim", hello("http://"+forged), forged))
		succeeds(t, l.reach(t, "forger", hello("http://"+name), name))
		victim, forger := l.addressOf(t, l.containerOf(t, "victim").ID), l.addressOf(t, l.containerOf(t, "forger").ID)
		secret := w.fresh()
		if err := w.ListenUDP(netip.AddrPortFrom(secret, 9999)); err != nil {
			t.Fatal(err)
		}
		capture := w.capture(t)
		script := fmt.Sprintf(`
import socket, struct, subprocess
me, victim, secret = %q, %q, %q
def checksum(b):
    s = sum(struct.unpack("!%%dH" %% (len(b) // 2), b)); s = (s >> 16) + (s & 0xffff)
    return ~(s + (s >> 16)) & 0xffff
def packet(src, dst, proto, payload):
    h = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, 0, 64, proto, 0, socket.inet_aton(src), socket.inet_aton(dst))
    return h[:10] + struct.pack("!H", checksum(h)) + h[12:] + payload
for src in (me, victim):
    for proto in (socket.IPPROTO_UDP, socket.IPPROTO_ICMP):
        try:
            raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            body = struct.pack("!HHHH", 5353, 9999, 8 + 6, 0) + b"forged" if proto == socket.IPPROTO_UDP else struct.pack("!BBHHH", 8, 0, 0xf7ff - 1 + 1, 0, 0)
            raw.sendto(packet(src, secret, proto, body), (secret, 0))
            print("sent", src, proto)
        except OSError as e:
            print("not sent", src, proto, e)
try:
    s = socket.create_connection((victim, 8080), 2); print("REACHED THE NEIGHBOUR")
except OSError as e:
    print("neighbour", type(e).__name__)
# The victim's address on our own interface.
for command in ("ip addr add %%s/22 dev eth0" %% victim, "ip addr del %%s/22 dev eth0" %% me):
    print(command, subprocess.run(command.split(), capture_output=True).returncode)
try:
    s = socket.socket(); s.settimeout(3); s.bind((victim, 0)); s.connect((%q, 80))
    s.sendall(b"GET /hello HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"); print("FORGED" if b"hello from" in s.recv(1000) else "no answer")
except OSError as e:
    print("forged source", type(e).__name__)
`, forger, victim, secret, w.other, forged)
		text := l.insideAs(t, l.containerOf(t, "forger").ID, container.ExecOptions{
			User: "0:0", Cmd: []string{"python3", "-c", script},
		})
		if strings.Contains(text, "REACHED") || strings.Contains(text, "FORGED") || !strings.Contains(text, "forged source") && !strings.Contains(text, "no answer") {
			t.Errorf("%s", text)
		}
		// gVisor makes no packets for anyone (its raw sockets are off); Linux does.
		if strings.HasSuffix(t.Name(), "/runc") && !strings.Contains(text, "\nsent "+victim) {
			t.Errorf("nothing was forged: %s", text)
		}
		if n := seen(t, capture, secret); n != 0 {
			t.Errorf("%d forged packets came: %v\n%s", n, capture.Packets(), text)
		}
		// The victim goes on.
		succeeds(t, l.reach(t, "victim", hello("http://"+forged), forged))
	}, "SANDBOXD_DOCKER_CAP_ADD=NET_ADMIN,NET_RAW")
}

// Real programs go through the filter as they do elsewhere.
func TestEgressOfRealPrograms(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "programs")
		name := w.name(t, "files", w.shared)
		for program, command := range map[string]string{
			"large download": "test $(curl -sS https://" + name + "/bytes?n=100000000 | wc -c) = 100000000",
			"upload":         "test $(head -c 3000000 /dev/zero | curl -sS --data-binary @- -H 'Content-Type: application/octet-stream' https://" + name + "/echo | wc -c) = 3000000",
			"wget":           "wget -q --ca-certificate=/home/ca.pem -O- https://" + name + "/hello",
			"python":         `python3 -c 'import urllib.request; print(urllib.request.urlopen("https://` + name + `/hello").read())'`,
			"http/2":         "curl -sS --http2 -o /dev/null -w '%{http_version}' https://" + name + "/hello | grep 2",
			"half-close":     `python3 -c 'import socket; s = socket.create_connection(("` + name + `", 80)); s.sendall(b"GET /hello HTTP/1.1\r\nHost: ` + name + `\r\nConnection: close\r\n\r\n"); s.shutdown(socket.SHUT_WR); b = b"".join(iter(lambda: s.recv(1000), b"")); assert b"hello from" in b, b'`,
			"many at once":   "for i in $(seq 20); do curl -sS -o /dev/null https://" + name + "/hello & done; wait",
			"unreachable":    "! curl -sS --max-time 20 https://" + w.name(t, "nowhere", w.Addr(200)) + " 2>/dev/null",
		} {
			out := l.reach(t, "programs", command, "*.example")
			if out.Failed {
				t.Errorf("%s: %s %.300q %.300q %v", program, exitText(out), out.Stdout, out.Stderr, out.Egress)
			}
		}
	})
}

// The log of decisions has what was asked, by whom, and follows.
func TestEgressDecisions(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "decisions")
		allowed, denied := w.name(t, "allowed", w.shared), w.name(t, "denied", w.shared)
		succeeds(t, l.reach(t, "decisions", hello("http://"+allowed)+"; "+hello("http://"+denied)+"; true", allowed))
		for _, name := range []string{allowed, denied} {
			out, err := l.cli("egress", "log", "--user", "decisions", "--name", name).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			printed := string(out)
			want := "allowed"
			if name == denied {
				want = "denied"
			}
			if !strings.Contains(printed, name) || !strings.Contains(printed, want) {
				t.Errorf("%q", printed)
			}
		}
		// What is counted is counted by verdict, never by name.
		web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", l.path("sandboxd.sock"))
		}}}
		answer, err := web.Get("http://x/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		out, err := io.ReadAll(answer.Body)
		if err != nil || !strings.Contains(string(out), `sandboxd_egress_decisions_total{verdict="denied",via="dns"}`) || strings.Contains(string(out), denied) {
			t.Errorf("metrics: %v\n%.2000s", err, out)
		}
	})
}

// Nothing of a lab is left on the host when it is closed.
func TestEgressLeavesNothing(t *testing.T) {
	w := openWorld(t)
	l := newLab(t, "runc", worldSettings(w)...)
	l.traveller(t, w, "leaves")
	succeeds(t, l.reach(t, "leaves", "true", "example.org"))
	l.close()
	if _, err := net.InterfaceByName(l.egress + "-iso"); err == nil {
		t.Error("the bridge is left")
	}
	if listed := l.place.nft(t, "list", "tables"); strings.Contains(listed, l.egress) {
		t.Errorf("tables are left:\n%s", listed)
	}
	if _, err := os.Stat(l.dir); err == nil {
		t.Error("the folder is left")
	}
}

// Without the right to make rules the service does not start; where the operator accepts that, calls have
// no network or all of it, and none is said to be filtered.
func TestEgressWithoutRights(t *testing.T) {
	w := openWorld(t)
	l := newLab(t, "runc", worldSettings(w)...)
	l.stop(syscall.SIGTERM)
	l.wrap = []string{"setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"}
	if err := l.start(); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") || !strings.Contains(err.Error(), "enableWeakerNestedSandbox") {
		t.Errorf("without the right: %v", err)
	}
	l.environ = append(l.environ, "SANDBOXD_DOCKER_ENABLE_WEAKER_NESTED_SANDBOX=true")
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	l.traveller(t, w, "weak")
	_, err := l.client.Exec(t.Context(), "weak", types.Exec{Command: "true", Permissions: []string{"@network"}, AllowedDomains: []string{"example.org"}})
	if kindOf(err) != types.Denied || !strings.Contains(err.Error(), "cannot hold a call to names") {
		t.Errorf("filtered: %v", err)
	}
	name := w.name(t, "weak", w.shared)
	if got := succeeds(t, l.reach(t, "weak", hello("http://"+name), "*")); got != "hello from "+name {
		t.Errorf("open: %q", got)
	}
	if out := l.run(t, "weak", types.Exec{Command: hello("http://" + w.shared.String())}); !out.Failed {
		t.Errorf("blocked: %q", out.Stdout)
	}
}
