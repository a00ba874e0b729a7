package budget

import (
	"context"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// When a socket is closed, the kernel keeps what its peer has not taken yet, for minutes, and a
// peer need not take anything. So what a connection has of a budget is given back only when
// everything is delivered.

// deliveryPause is how often what is left of a connection is checked.
const deliveryPause = 100 * time.Millisecond

// undelivered is what is left of a connection that has ended. Its zero value is for one that has
// just ended.
type undelivered struct {
	bytes int
	since time.Time // when it became less
}

// waits reports whether a connection with so many bytes left should stay, and whether it is late:
// its peer has taken nothing for at least limit.
func (u *undelivered) waits(left int, now time.Time, limit time.Duration) (stays, late bool) {
	const ends = 2 // the end of each of two sockets counts as a byte
	if left <= ends {
		return false, false
	}
	if u.since.IsZero() || left < u.bytes {
		u.bytes, u.since = left, now
	}
	late = now.Sub(u.since) >= limit
	return !late, late
}

// unsent returns how many bytes the kernel has still to deliver to a TCP socket's peer. It is 0 for
// a connection that was reset.
func unsent(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil || n <= 0 {
		return 0
	}
	const closed = 7 // TCP_CLOSE
	if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err != nil ||
		info.State == closed {
		return 0
	}
	return n
}

// Deliver waits until the kernel has delivered what was written to a connection that is about to be
// closed. If the peer takes nothing for at least limit, or if ctx ends, closing resets the
// connection.
func Deliver(ctx context.Context, c *net.TCPConn, limit time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	left := func() (n int) {
		_ = raw.Control(func(fd uintptr) { n = unsent(int(fd)) })
		return n
	}
	if left() == 0 {
		return
	}
	_ = c.CloseWrite()
	var u undelivered
	for pause := time.Millisecond; ; pause = min(2*pause, deliveryPause) {
		waits, late := u.waits(left(), time.Now(), limit)
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
