package gateway

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// queued is more than any socket's queue holds. Queues are first in, first out, so after taking so
// many, all that was there before is gone, however fast more comes.
const queued = 1 << 16

// discard empties the sockets' queues. Connections that wait are reset.
func (c *Client) discard() error {
	var faults []error
	for _, conn := range c.DNSOverUDP {
		faults = append(faults, empty(conn, func(fd int) error {
			_, err := unix.Read(fd, make([]byte, 1))
			return err
		}))
	}
	if c.Refused != nil {
		c.PassRefused(func(Refused) {})
	}
	for _, l := range c.listeners() {
		faults = append(faults, empty(l, func(fd int) error {
			one, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err == nil {
				_ = unix.SetsockoptLinger(one, unix.SOL_SOCKET, unix.SO_LINGER,
					&unix.Linger{Onoff: 1})
				_ = unix.Close(one)
			}
			return err
		}))
	}
	return errors.Join(faults...)
}

// empty takes from a socket until there is no more. An error of what was taken is no error of the
// socket.
func empty(socket syscall.Conn, take func(fd int) error) error {
	raw, err := socket.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			for range queued {
				if errors.Is(take(int(fd)), unix.EAGAIN) {
					return
				}
			}
		})
	}
	if err != nil {
		return fmt.Errorf("cannot discard what waits in the gateway: %w", err)
	}
	return nil
}
