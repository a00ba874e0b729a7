package budget

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// When a socket is closed, the kernel keeps what its peer has not taken yet, for minutes, and a peer need not take
// anything. So what a connection has of a budget is given back only when everything is delivered.

// DeliveryPause is how often what is left of a connection is checked.
const DeliveryPause = 100 * time.Millisecond

// Undelivered is what is left of a connection that has ended. Its zero value is for one that has just ended.
type Undelivered struct {
	bytes int
	since time.Time // when it became less
}

// Waits reports whether a connection with so many bytes left should stay, and whether it is late: its peer has taken
// nothing for at least most.
func (u *Undelivered) Waits(left int, now time.Time, most time.Duration) (waits, late bool) {
	const ends = 2 // the end of each of two sockets counts as a byte
	if left <= ends {
		return false, false
	}
	if u.since.IsZero() || left < u.bytes {
		u.bytes, u.since = left, now
	}
	late = now.Sub(u.since) >= most
	return !late, late
}

// Unsent returns how many bytes the kernel has still to deliver to a TCP socket's peer. It is 0 for a connection that
// was reset.
func Unsent(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil || n <= 0 {
		return 0
	}
	const closed = 7 // TCP_CLOSE
	if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State == closed {
		return 0
	}
	return n
}

// Deliver waits until the kernel has delivered what was written to a connection that is about to be closed. If the
// peer takes nothing for at least most, or if ctx ends, closing resets the connection.
func Deliver(ctx context.Context, c *net.TCPConn, most time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	left := func() (n int) {
		_ = raw.Control(func(fd uintptr) { n = Unsent(int(fd)) })
		return n
	}
	if left() == 0 {
		return
	}
	_ = c.CloseWrite()
	var u Undelivered
	for pause := time.Millisecond; ; pause = min(2*pause, DeliveryPause) {
		waits, late := u.Waits(left(), time.Now(), most)
		if !waits && !late {
			return
		}
		if waits {
			select {
			case <-time.After(pause):
				continue
			case <-ctx.Done():
			}
		}
		_ = c.SetLinger(0)
		return
	}
}
