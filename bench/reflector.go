package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"golang.org/x/sys/unix"
)

// runReflector answers every datagram with itself, marked as a DNS answer without an error. It
// shows what the machine, the kernel and dnsperf take for a question if the server does nothing. It
// waits in the system call, so that only the kernel's scheduler is involved.
func runReflector(ctx context.Context, text string, stdout io.Writer) error {
	var at netip.AddrPort
	if err := readPlan(text, &at); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return fmt.Errorf("cannot bind %s: %w", at, err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if err := answer(stdout, netip.AddrPortFrom(at.Addr(), uint16(bound.(*unix.SockaddrInet4).Port))); err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // wakes a receiver, though it fails where nothing is connected
	}()
	packet := make([]byte, 4096)
	for ctx.Err() == nil {
		n, from, err := unix.Recvfrom(fd, packet, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("cannot receive: %w", err)
		case n >= 4 && from != nil:
			packet[2], packet[3] = packet[2]|0x80, 0x80 // QR; RA and NOERROR (RFC 1035, 4.1.1)
			_ = unix.Sendto(fd, packet[:n], 0, from)
		}
	}
	return nil
}
