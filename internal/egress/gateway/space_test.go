package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
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
		c, err = net.DialTimeout(network, at, 10*time.Second)
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
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = c.Write([]byte("question"))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil {
		return err.Error()
	}
	return string(buf[:n])
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
