package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
)

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
import concurrent.futures, socket, ssl, subprocess, sys
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
hosts = %q.split()
with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool: # one after another their number would decide how long it takes
    for addr, got in zip(hosts, pool.map(lambda addr: tcp(addr, %d), hosts)):
        print("host", addr, got)
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
	if len(list) == 0 {
		t.Fatal("the host has no address at which it could be reached")
	}
	return strings.Join(list, " ")
}

// Allowed names do not lead to addresses that nobody may reach, whoever answers for them.
func TestEgressRebinding(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "rebind")
		l.traveller(t, w, "local")
		gateway := netip.MustParseAddr(strings.Fields(hostAddresses(t, l.place))[0])
		privateAddr := w.private(t)
		private, metadata := w.name(t, "private", privateAddr), w.name(t, "metadata", w.metadata)
		own, loop := w.name(t, "own", gateway), w.name(t, "loop", netip.MustParseAddr("127.0.0.1"))
		mixed := w.name(t, "mixed", w.metadata, w.shared, privateAddr)
		mapped := w.name(t, "mapped", netip.AddrFrom16(privateAddr.As16()))
		capture := w.capture(t)
		// What filter and guard say where nobody has even tried to connect.
		untried := []string{"the name has no address that this call may reach", "the name has no IPv4 address", "the name could not be resolved"}
		struck := func(out types.Output, name string) bool {
			return out.Failed && slices.ContainsFunc(out.Egress, func(r types.Refusal) bool { return r.Name == name && slices.Contains(untried, r.Reason) })
		}
		for _, name := range []string{private, metadata, own, loop, mapped} {
			for _, url := range []string{hello("http://" + name), hello("-f --resolve " + name + ":80:" + w.shared.String() + " http://" + name)} {
				if out := l.reach(t, "rebind", url, "*.example"); !struck(out, name) {
					t.Errorf("isolated: %s: %q, egress %+v", url, out.Stdout, out.Egress)
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
			if out := l.reach(t, "local", hello("http://"+name), "*.example"); !struck(out, name) {
				t.Errorf("local: %s: %q, egress %+v", name, out.Stdout, out.Egress)
			}
		}
		if n := seen(t, capture, w.metadata); n != 0 {
			t.Errorf("local: %d packets came to metadata", n)
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
		neighbour := l.runs(t, "victim", forged, "listens", `
import socket, sys, threading
server = socket.create_server(("0.0.0.0", 8080))
def serve():
    while True:
        server.accept()[0].close()
        print("came", flush=True)
threading.Thread(target=serve, daemon=True).start()
socket.create_connection(("127.0.0.1", 8080)).close()
print("listens", flush=True)
sys.stdin.read()
`)
		neighbour.says(t, "came") // by itself
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
		if n := neighbour.out.count("came"); n != 1 {
			t.Errorf("the neighbour was reached %d times\n%s", n-1, text)
		}
		neighbour.end(t)
		// gVisor makes no packets for anyone (its raw sockets are off); Linux does.
		if l.runtime() == "runc" && !strings.Contains(text, "\nsent "+victim) {
			t.Errorf("nothing was forged: %s", text)
		}
		if n := seen(t, capture, secret); n != 0 {
			t.Errorf("%d forged packets came: %v\n%s", n, capture.Packets(), text)
		}
		// The victim goes on.
		succeeds(t, l.reach(t, "victim", hello("http://"+forged), forged))
	}, "SANDBOXD_DOCKER_CAP_ADD=NET_ADMIN,NET_RAW", "SANDBOXD_IDLE_FREEZE_AFTER=0s") // Docker runs the script, which is no call
}
