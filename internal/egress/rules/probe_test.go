package rules

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// arrivals is what has come to a receiver, a line for each.
type arrivals struct {
	mu    sync.Mutex
	lines []string
}

func (a *arrivals) add(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lines = append(a.lines, fmt.Sprintf(format, args...))
}

func (a *arrivals) matching(part string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []string
	for _, line := range a.lines {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return found
}

func (a *arrivals) all() []string { return a.matching("") }

func (a *arrivals) has(part string) bool { return len(a.matching(part)) > 0 }

func (a *arrivals) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lines = nil
}

// answerLimit bounds every wait for what has to come, and silenceLimit every wait for what must not. A machine that
// is busy takes long to answer, but one that answers at all proves what is asked.
const (
	answerLimit  = 10 * time.Second
	silenceLimit = 150 * time.Millisecond
)

// serve listens by TCP and UDP on all addresses of the namespace, echoes, and notes
// "tcp FROM > PORT original DST" or "udp FROM > PORT TEXT".
func (s *space) serve(t testing.TB, log *arrivals, port int) {
	t.Helper()
	addrs, err := s.net.AddrList(nil, unix.AF_UNSPEC)
	must(t, err)
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP)
		if !ip.IsLinkLocalUnicast() || ip.Is4() || ip.Unmap().Is4() {
			s.serveAt(t, log, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
		}
	}
}

func (s *space) serveAt(t testing.TB, log *arrivals, at netip.AddrPort) {
	t.Helper()
	s.do(t, func() error {
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		u, err := net.ListenPacket("udp", at.String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close(); u.Close() })
		go echoAll(l, log)
		go func() {
			for buf := make([]byte, 2048); ; {
				n, from, err := u.ReadFrom(buf)
				if err != nil {
					return
				}
				log.add("udp %v > %v %q", source(from), at.Port(), buf[:n])
				u.WriteTo(buf[:n], from)
			}
		}()
		return nil
	})
}

func echoAll(l net.Listener, log *arrivals) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		log.add("tcp %v > %v original %v", source(c.RemoteAddr()), c.LocalAddr().(*net.TCPAddr).Port, originalOf(c))
		go func() {
			defer c.Close()
			io.Copy(c, c)
		}()
	}
}

func source(a net.Addr) netip.Addr {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap()
}

// originalOf asks connection tracking whom the caller meant to reach.
func originalOf(c net.Conn) (original netip.AddrPort) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		var sa unix.RawSockaddrInet4
		size := uint32(unsafe.Sizeof(sa))
		if _, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, unix.SOL_IP, unix.SO_ORIGINAL_DST,
			uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), 0); errno == 0 {
			p := (*[2]byte)(unsafe.Pointer(&sa.Port))
			original = netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), binary.BigEndian.Uint16(p[:]))
		}
	})
	return original
}

// dial connects from inside of the namespace.
func (s *space) dial(network string, addr netip.Addr, port int) (net.Conn, error) {
	return s.dialWithin(answerLimit, network, addr, port)
}

func (s *space) dialWithin(limit time.Duration, network string, addr netip.Addr, port int) (c net.Conn, err error) {
	err = s.try(func() error {
		d := net.Dialer{Timeout: limit}
		c, err = d.DialContext(context.Background(), network, netip.AddrPortFrom(addr, uint16(port)).String())
		return err
	})
	return c, err
}

// tcp reports whether a connection came about. One that is refused is told so at once; tcpBriefly is for what may be
// dropped without a word.
func (s *space) tcp(addr netip.Addr, port int) error { return s.tcpWithin(answerLimit, addr, port) }

func (s *space) tcpBriefly(addr netip.Addr, port int) error {
	return s.tcpWithin(silenceLimit, addr, port)
}

func (s *space) tcpWithin(limit time.Duration, addr netip.Addr, port int) error {
	c, err := s.dialWithin(limit, "tcp", addr, port)
	if err == nil {
		c.Close()
	}
	return err
}

// echo sends by UDP or over the connection and reports whether it came back. echoBriefly is for what must not.
func echo(c net.Conn, text string) bool { return echoWithin(answerLimit, c, text) }

func echoBriefly(c net.Conn, text string) bool { return echoWithin(silenceLimit, c, text) }

func echoWithin(limit time.Duration, c net.Conn, text string) bool {
	c.SetDeadline(time.Now().Add(limit))
	if _, err := c.Write([]byte(text)); err != nil {
		return false
	}
	buf := make([]byte, len(text))
	_, err := io.ReadFull(c, buf)
	return err == nil && string(buf) == text
}

// udp reports whether a datagram was answered. It asks again, and waits longer each time, since one may be lost.
func (s *space) udp(addr netip.Addr, port int, text string) bool {
	for limit := silenceLimit; limit < answerLimit; limit *= 2 {
		if s.udpWithin(limit, addr, port, text) {
			return true
		}
	}
	return false
}

// udpBriefly asks once, and is for what must not be answered.
func (s *space) udpBriefly(addr netip.Addr, port int, text string) bool {
	return s.udpWithin(silenceLimit, addr, port, text)
}

func (s *space) udpWithin(limit time.Duration, addr netip.Addr, port int, text string) bool {
	c, err := s.dial("udp", addr, port)
	if err != nil {
		return false
	}
	defer c.Close()
	return echoWithin(limit, c, text)
}

// ping sends one echo request and does not wait.
func (s *space) ping(t testing.TB, addr netip.Addr) {
	t.Helper()
	c, err := s.dial("ip4:icmp", addr, 0)
	if err != nil { // Dial wants no port for these
		s.do(t, func() error { c, err = net.Dial("ip4:icmp", addr.String()); return err })
	}
	defer c.Close()
	c.Write([]byte{8, 0, 0xf7, 0xff - 1, 0, 1, 0, 0}) // refused at once is as good
}

// A wire tap on an interface of a namespace: it sees what comes to it before any of its own rules.
type tap struct {
	arrivals
	space *space
	file  *os.File
}

func (s *space) tap(t testing.TB, device string) *tap {
	t.Helper()
	p := &tap{space: s, file: s.packetSocket(t, device)}
	done := make(chan struct{})
	t.Cleanup(func() { p.file.Close(); <-done })
	go func() {
		defer close(done)
		for buf := make([]byte, 65536); ; {
			n, err := p.file.Read(buf)
			if err != nil {
				return
			}
			p.add("%s", describeFrame(buf[:n]))
		}
	}()
	return p
}

func (s *space) packetSocket(t testing.TB, device string) *os.File {
	t.Helper()
	var file *os.File
	index := s.link(t, device).Attrs().Index
	s.do(t, func() error {
		everything := uint16(unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(everything))
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "packets")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: index})
	})
	return file
}

// send puts frames on the wire as they are.
func (s *space) send(t testing.TB, device string, frames ...[]byte) {
	t.Helper()
	f := s.packetSocket(t, device)
	defer f.Close()
	for _, frame := range frames {
		if _, err := f.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
}

// fence waits until what the host sent out of the device now has come to the tap: so has all before it.
func (p *tap) fence(t testing.TB, host *space, device string) {
	t.Helper()
	text := fmt.Sprintf("fence %d", time.Now().UnixNano())
	frame := ethernet(broadcast, net.HardwareAddr{2, 0, 0, 0, 0, 1}, 0x88b5, []byte(text))
	waittest.Until(t, "the fence", func() bool {
		host.send(t, device, frame)
		return p.has(text)
	})
}
