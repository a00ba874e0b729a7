package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A space is a network namespace without a name, which ends with the test.
type space struct {
	fd  netns.NsHandle
	net *netlink.Handle
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newSpace(t *testing.T) *space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	s := &space{}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var err error
		s.fd, err = netns.New()
		done <- err
	}()
	must(t, <-done)
	var err error
	s.net, err = netlink.NewHandleAt(s.fd)
	must(t, err)
	t.Cleanup(func() { s.net.Close(); _ = s.fd.Close() })
	return s
}

// in runs f in the namespace. Sockets that f makes stay there.
func (s *space) in(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(s.fd)
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// gate is a gateway and its client.
type gate struct {
	*space
	*Client
	outside *space
}

// newGate serves in a namespace. It is made from an outer one, as the service's is, in which its peers are.
func newGate(t *testing.T, cfg Config) *gate {
	t.Helper()
	g := &gate{space: newSpace(t), outside: newSpace(t)}
	dir := t.TempDir()
	must(t, g.in(func() error {
		for name, value := range Sysctls() {
			if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0o600); err != nil {
				return err
			}
		}
		return nil
	}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.in(func() error { return Serve(ctx, dir, cfg) }) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	var err error
	g.Client, err = Dial(t.Context(), dir, cfg)
	must(t, err)
	t.Cleanup(g.Close)
	return g
}

var gatewayAddr = netip.MustParseAddr("10.77.1.1")

// box is a container: a namespace whose eth0 ends in the gateway.
type box struct {
	*space
	addr netip.Addr
	mac  net.HardwareAddr
}

func (g *gate) newBox(t *testing.T, number byte) *box {
	t.Helper()
	b := &box{space: newSpace(t), addr: netip.AddrFrom4([4]byte{10, 77, 1, number}), mac: net.HardwareAddr{2, 0x42, 10, 77, 1, number}}
	must(t, g.net.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: LinkName(b.addr)}, PeerName: "eth0", PeerHardwareAddr: b.mac, PeerNamespace: netlink.NsFd(int(b.fd)),
	}))
	for _, name := range []string{"lo", "eth0"} {
		link, err := b.net.LinkByName(name)
		must(t, err)
		must(t, b.net.LinkSetUp(link))
		if name == "eth0" {
			must(t, b.net.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: b.addr.AsSlice(), Mask: net.CIDRMask(24, 32)}}))
		}
	}
	must(t, b.net.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Gw: gatewayAddr.AsSlice()}))
	must(t, g.Attach(b.addr, b.mac))
	must(t, g.Attach(b.addr, b.mac)) // once more is nothing more
	return b
}

// dial connects from inside.
func (b *box) dial(network, at string) (c net.Conn, err error) {
	err = b.in(func() error {
		c, err = net.DialTimeout(network, at, 2*time.Second)
		return err
	})
	return c, err
}

// greet accepts until the test ends, and says from whom to where.
func greet(t *testing.T, l *net.TCPListener) {
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			from := c.RemoteAddr().(*net.TCPAddr).IP
			fmt.Fprintf(c, "%v to %v", from, c.LocalAddr())
			_ = c.Close()
		}
	}()
}

// answerAll answers each question with who asked, and counts them.
func answerAll(t *testing.T, conns []*net.UDPConn) (count func() int) {
	counts := make(chan int, 1)
	counts <- 0
	for _, conn := range conns {
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			for buf := make([]byte, 100); ; {
				_, from, err := conn.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				counts <- <-counts + 1
				_, _ = conn.WriteToUDPAddrPort([]byte(from.Addr().Unmap().String()), from)
			}
		}()
	}
	return func() int { n := <-counts; counts <- n; return n }
}

func (b *box) ask(at string) string {
	c, err := b.dial("udp", at)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	_, _ = c.Write([]byte("question"))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil {
		return err.Error()
	}
	return string(buf[:n])
}

// What a container sends comes to the gateway's sockets, wherever it was meant to go, or to nothing.
func TestWhatAContainerReaches(t *testing.T) {
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

// spoof sends UDP with a source of its own choice, as who may make packets can.
func (b *box) spoof(from netip.Addr, to netip.AddrPort) error {
	return b.in(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		packet := []byte{0x45, 0, 0, 29, 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0} // the kernel fills in the checksum
		packet = append(append(packet, from.AsSlice()...), to.Addr().AsSlice()...)
		packet = append(packet, 0x11, 0x5c, byte(to.Port()>>8), byte(to.Port()), 0, 9, 0, 0, 'x')
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
	})
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
