package gateway

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// queued is more than any socket's queue holds. Queues are first in, first out, so after taking so many, all that was there
// before is gone, however fast more comes.
const queued = 1 << 16

// discard empties the sockets' queues. Connections that wait are reset.
func (c *Client) discard() error {
	var faults []error
	for _, conn := range c.DNSOverUDP {
		faults = append(faults, empty(conn, func(fd int) error {
			_, err := nonblock.Read(fd, make([]byte, 1))
			return err
		}))
	}
	if c.Refused != nil {
		faults = append(faults, empty(c.Refused, func(fd int) error {
			_, err := nonblock.Read(fd, make([]byte, 1))
			return err
		}))
	}
	for _, l := range c.listeners() {
		faults = append(faults, empty(l, func(fd int) error {
			one, _, err := nonblock.Accept(fd)
			if err == nil {
				nonblock.Reset(one)
			}
			return err
		}))
	}
	return errors.Join(faults...)
}

// empty takes from a socket until there is no more. An error of what was taken is no error of the socket.
func empty(socket syscall.Conn, take func(fd int) error) error {
	raw, err := socket.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			for range queued {
				if errors.Is(take(int(fd)), nonblock.Again) {
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
