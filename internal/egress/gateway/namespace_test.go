package gateway

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// What a container sends comes to the gateway's sockets, wherever it was meant to go, or to nothing.
func TestContainersReachOnlyTheGateway(t *testing.T) {
	g := newGate(t, good())
	greet(t, g.TLS)
	greet(t, g.HTTP)
	greet(t, g.DNSOverTCP)
	greet(t, g.Ports[22])
	answerAll(t, g.DNSOverUDP)
	one, two := g.newBox(t, 11), g.newBox(t, 12)
	reached := make(chan string, 1)
	must(t, two.in(func() error { // what a neighbour would hear
		l, err := net.Listen("tcp", ":80")
		if err == nil {
			go func() {
				if _, err := l.Accept(); err == nil {
					reached <- "neighbour"
				}
			}()
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	}))
	for _, at := range []string{"203.0.113.9:443", "203.0.113.9:80", "10.77.1.1:443", "10.77.1.12:80", "169.254.169.254:80", "203.0.113.9:22", "10.77.1.1:53"} {
		c, err := one.dial("tcp", at)
		if err != nil {
			t.Errorf("%s: %v", at, err)
			continue
		}
		if said, _ := io.ReadAll(c); string(said) != "10.77.1.11 to "+at {
			t.Errorf("%s: %q", at, said)
		}
		_ = c.Close()
	}
	for _, at := range []string{"203.0.113.9:25", "203.0.113.9:53", "10.77.1.12:8080", "10.77.1.1:22222"} {
		if _, err := one.dial("tcp", at); !errors.Is(err, syscall.ECONNREFUSED) { // at once
			t.Errorf("%s: %v", at, err)
		}
	}
	if got := one.ask("10.77.1.1:53"); got != "10.77.1.11" {
		t.Errorf("DNS: %q", got)
	}
	for _, at := range []string{"203.0.113.9:53", "10.77.1.12:53", "10.77.1.1:123"} {
		if got := one.ask(at); !strings.Contains(got, "refused") {
			t.Errorf("udp %s: %q", at, got)
		}
	}
	select {
	case who := <-reached:
		t.Errorf("the %s was reached", who)
	default:
	}
}

// No container can send with another's address, nor with one that is nobody's.
func TestSourcesAreTrue(t *testing.T) {
	g := newGate(t, good())
	count := answerAll(t, g.DNSOverUDP)
	one, two := g.newBox(t, 11), g.newBox(t, 12)
	dns := netip.AddrPortFrom(gatewayAddr, 53)
	for _, from := range []string{"10.77.1.12", "10.77.1.13", "10.77.1.1", "203.0.113.9", "127.0.0.1", "224.0.0.1", "255.255.255.255"} {
		must(t, one.spoof(netip.MustParseAddr(from), dns))
	}
	must(t, one.spoof(one.addr, dns)) // the same with its own: what is badly made proves nothing
	if got := one.ask("10.77.1.1:53"); got != "10.77.1.11" {
		t.Errorf("%q", got)
	}
	waittest.Until(t, "the two that are honest are counted", func() bool { return count() >= 2 }) // by different sockets' readers
	if n := count(); n != 2 {
		t.Errorf("%d questions came, not the two that are honest", n)
	}
	if got := two.ask("10.77.1.1:53"); got != "10.77.1.12" {
		t.Errorf("the other: %q", got)
	}
}

// A flood is dropped before the socket, and costs its sender alone.
func TestAFloodIsItsSendersOwn(t *testing.T) {
	g := newGate(t, good()) // 100 a second
	count := answerAll(t, g.DNSOverUDP)
	greet(t, g.TLS)
	one, two := g.newBox(t, 11), g.newBox(t, 12)
	begun := time.Now()
	must(t, one.in(func() error {
		c, err := net.Dial("udp", "10.77.1.1:53")
		if err != nil {
			return err
		}
		defer c.Close()
		for range 5000 {
			_, _ = c.Write([]byte("flood"))
		}
		return nil
	}))
	if got := two.ask("10.77.1.1:53"); got != "10.77.1.12" {
		t.Errorf("the other: %q", got)
	}
	if most := 101 + int(100*time.Since(begun).Seconds()) + 100; count() > most {
		t.Errorf("%d questions came, of at most %d", count(), most)
	}
	if c, err := two.dial("tcp", "203.0.113.9:443"); err != nil {
		t.Errorf("the other: %v", err)
	} else {
		_ = c.Close()
	}
}

// A container that is detached has no interface any more, and what another service left is found.
func TestDetach(t *testing.T) {
	g := newGate(t, good())
	answerAll(t, g.DNSOverUDP)
	one, two := g.newBox(t, 11), g.newBox(t, 12)
	if addrs, err := g.Attached(); err != nil || len(addrs) != 2 {
		t.Errorf("%v, %v", addrs, err)
	}
	must(t, g.Detach(one.addr))
	must(t, g.Detach(one.addr))
	if addrs, err := g.Attached(); err != nil || len(addrs) != 1 || addrs[0] != two.addr {
		t.Errorf("%v, %v", addrs, err)
	}
	if got := one.ask("10.77.1.1:53"); got == "10.77.1.11" {
		t.Error("it was answered")
	}
	if got := two.ask("10.77.1.1:53"); got != "10.77.1.12" {
		t.Errorf("the other: %q", got)
	}
	if err := g.Attach(one.addr, one.mac); err == nil {
		t.Error("an interface was attached that is not there")
	}
}

// A namespace that something leads out of, or that would forward, is none for a gateway.
func TestOnlyAClosedNamespace(t *testing.T) {
	for want, spoil := range map[string]func(*space) error{
		"ip_forward": func(*space) error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600) },
		"3 interfaces": func(s *space) error {
			return s.net.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "way"})
		},
	} {
		s := newSpace(t)
		err := s.in(func() error {
			for name, value := range Sysctls() {
				if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0o600); err != nil {
					return err
				}
			}
			if err := spoil(s); err != nil {
				return err
			}
			return Serve(t.Context(), t.TempDir(), good())
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// What a container left in the sockets while no service took it is not taken for the next one's with its address.
func TestRestartDiscardsWhatWaits(t *testing.T) {
	g := newGate(t, good())
	gone, stays := g.newBox(t, 11), g.newBox(t, 12)
	waits := map[string]*net.TCPListener{"203.0.113.9:443": g.TLS, "203.0.113.9:80": g.HTTP, "203.0.113.9:22": g.Ports[22], "10.77.1.1:53": g.DNSOverTCP}
	for at := range waits {
		c, err := gone.dial("tcp", at)
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
	}
	for range 20 { // each from another port, so that all sockets have some
		c, err := gone.dial("udp", "10.77.1.1:53")
		must(t, err)
		_, err = c.Write([]byte("old"))
		must(t, errors.Join(err, c.Close()))
	}
	must(t, g.Restart(map[netip.Addr]bool{stays.addr: true}))
	if attached, err := g.Attached(); err != nil || len(attached) != 1 || attached[0] != stays.addr {
		t.Errorf("%v, %v", attached, err)
	}
	next := g.newBox(t, 11)
	for at, l := range waits {
		c, err := next.dial("tcp", at)
		must(t, err)
		defer c.Close()
		got, err := l.AcceptTCP()
		must(t, err)
		defer got.Close()
		if got.RemoteAddr().String() != c.LocalAddr().String() {
			t.Errorf("%s: one of before was accepted", at)
		}
	}
	asked := answerAll(t, g.DNSOverUDP)
	if got := next.ask("10.77.1.1:53"); got != next.addr.String() {
		t.Errorf("DNS: %q", got)
	}
	if n := asked(); n != 1 {
		t.Errorf("%d questions were taken, want the one of now", n)
	}
}
