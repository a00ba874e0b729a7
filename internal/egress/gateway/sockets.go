package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/sockopt"
)

// sockets are the namespace's, as files to be handed over.
type sockets struct {
	udp []*os.File // DNS; the kernel spreads clients over them
	tcp []*os.File // DNS, then TLS, HTTP, and the further ports in the configuration's order
}

// questionBuffer is how many bytes may wait for the DNS filter in each socket, and questionBuffers
// how many in all of them. The kernel takes twice that, of the gateway's memory (gatewayMemory in
// dockerexec/networks), also while no service reads it.
const questionBuffer, questionBuffers = 4 << 20, 64 << 20

// openSockets opens them for a host with that many processors.
func openSockets(ctx context.Context, c Config, processors int) (_ *sockets, err error) {
	s := &sockets{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot listen: %w", err), s.close())
		}
	}()
	count := min(processors, maxUDP)
	for range count {
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			return set(raw, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}}
		conn, err := config.ListenPacket(ctx, "udp4",
			netip.AddrPortFrom(c.Address, dnsPort).String())
		if err != nil {
			return s, err
		}
		if raw, rawErr := conn.(*net.UDPConn).SyscallConn(); rawErr == nil {
			// Best effort: with less, a burst loses more questions.
			_ = set(raw, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE,
				min(questionBuffer, questionBuffers/count))
		}
		file, err := conn.(*net.UDPConn).File()
		if err := errors.Join(err, conn.Close()); err != nil {
			return s, err
		}
		s.udp = append(s.udp, file)
	}
	any4 := netip.IPv4Unspecified()
	at := []netip.AddrPort{netip.AddrPortFrom(c.Address, dnsPort), netip.AddrPortFrom(any4, 443),
		netip.AddrPortFrom(any4, 80)}
	for _, port := range c.Ports {
		at = append(at, netip.AddrPortFrom(any4, port))
	}
	for _, where := range at {
		config := net.ListenConfig{KeepAliveConfig: sockopt.KeepAlive}
		config.SetMultipathTCP(false)
		l, err := config.Listen(ctx, "tcp4", where.String())
		if err != nil {
			return s, err
		}
		file, err := l.(*net.TCPListener).File()
		if err := errors.Join(err, l.Close()); err != nil {
			return s, err
		}
		s.tcp = append(s.tcp, file)
	}
	return s, nil
}

func (s *sockets) close() error {
	var faults []error
	for _, f := range append(s.udp, s.tcp...) {
		faults = append(faults, f.Close())
	}
	return errors.Join(faults...)
}

func set(raw syscall.RawConn, level, option, value int) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), level, option, value)
	})
	return errors.Join(err, failed)
}
