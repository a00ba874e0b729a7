package guard

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/fair"
)

// end is one side of a flow. Whatever it copies takes its user's turns. It holds no buffer while it
// waits.
type end struct {
	*net.TCPConn
	raw   syscall.RawConn
	turns *fair.Turns
	user  string
	owner *owned
	shut  atomic.Bool // we have ended our half
}

// turnShare is how much is copied in one turn.
const turnShare = 128 << 10

func (g *Guard) newEnd(c *net.TCPConn, user string, owner *owned) *end {
	raw, err := c.SyscallConn()
	if err != nil {
		panic(err) // of a nil connection alone
	}
	return &end{TCPConn: c, raw: raw, turns: &g.turns, user: user, owner: owner}
}

// inTurn calls do when the socket is ready for events, POLLIN or POLLOUT, and it is the user's
// turn, until do returns something else than EAGAIN. do must not block.
// Once the owner has ended, nothing is done.
func (e *end) inTurn(events int16, do func(fd int) error) error {
	wait := e.raw.Read
	if events == unix.POLLOUT {
		wait = e.raw.Write
	}
	var failed error
	err := wait(func(fd uintptr) bool {
		if polled(int(fd), events)&(events|unix.POLLHUP|unix.POLLERR) == 0 {
			return false // which needs no turn
		}
		e.turns.Begin(e.user, nil)
		defer func() {
			// A goroutine that was just woken runs before those that wait for a processor, so a chain
			// of turns would keep them from one, and from their own turns, for as long as 10 ms.
			if e.turns.End(e.user) {
				runtime.Gosched()
			}
		}()
		if e.owner.ended.Load() { // while this waited
			failed = net.ErrClosed
			return true
		}
		failed = do(int(fd))
		return failed != unix.EAGAIN
	})
	return cmp.Or(err, failed)
}

// Read implements io.Reader.
func (e *end) Read(p []byte) (n int, err error) {
	err = e.inTurn(unix.POLLIN, func(fd int) (failed error) {
		n, failed = read(fd, p[:min(len(p), turnShare)])
		return failed
	})
	switch {
	case err != nil:
		return 0, e.fault("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}

// receive waits for bytes, at most limit, and calls keep with them. At the end it returns io.EOF.
func (e *end) receive(limit int, keep func([]byte)) error {
	return e.inTurn(unix.POLLIN, func(fd int) error {
		p := scratch.Get().(*[turnShare]byte)
		defer scratch.Put(p)
		n, err := read(fd, p[:limit])
		switch {
		case err != nil:
			return err
		case n == 0:
			return io.EOF
		}
		keep(p[:n])
		return nil
	})
}

// Write implements io.Writer.
func (e *end) Write(p []byte) (sent int, err error) {
	for sent < len(p) {
		n := 0
		err := e.inTurn(unix.POLLOUT, func(fd int) (failed error) {
			n, failed = send(fd, p[sent:min(len(p), sent+turnShare)])
			return failed
		})
		if err != nil {
			return sent, e.fault("write", err)
		}
		sent += n
	}
	return sent, nil
}

// ReadFrom and WriteTo would copy past the turns.
func (e *end) ReadFrom(from io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{e}, from)
}

func (e *end) WriteTo(to io.Writer) (int64, error) { return io.Copy(to, struct{ io.Reader }{e}) }

// fault returns an error like those of net's own connections.
func (e *end) fault(op string, err error) error {
	if wrapped, is := errors.AsType[*net.OpError](err); is {
		err = wrapped.Err
	}
	if number, is := errors.AsType[syscall.Errno](err); is {
		err = os.NewSyscallError(op, number)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: e.LocalAddr(), Addr: e.RemoteAddr(), Err: err}
}

// scratch are the buffers of whoever has the turn.
var scratch = sync.Pool{New: func() any { return new([turnShare]byte) }}

// onEvent calls is, which must not block, now and whenever something happens to the socket, until
// it returns true.
func (e *end) onEvent(is func(fd int) bool) error {
	return e.raw.Read(func(fd uintptr) bool { return is(int(fd)) })
}

// CloseWrite ends our half of the connection.
func (e *end) CloseWrite() error {
	e.shut.Store(true) // before it shows
	return e.TCPConn.CloseWrite()
}

// ended returns how the peer's half has ended, after a read of nothing. The other direction may
// have been told of a reset, which the kernel tells only once: then all is over, no error is left,
// and we have not ended our half.
func (e *end) ended(fd int) error {
	if polled(fd, 0)&(unix.POLLHUP|unix.POLLERR) == unix.POLLHUP && !e.shut.Load() {
		return unix.ECONNRESET
	}
	return io.EOF
}

// gone reports whether the peer has ended its half of the connection, or all of it.
func gone(fd int) bool {
	return polled(fd, unix.POLLRDHUP)&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// broken reports whether nothing reaches the peer any more.
func broken(fd int) bool { return polled(fd, 0)&(unix.POLLHUP|unix.POLLERR) != 0 }

// lost reports whether the connection is broken, and not because both sides have ended their
// halves.
func (e *end) lost(fd int) bool {
	events := polled(fd, 0)
	return events&unix.POLLERR != 0 || events&unix.POLLHUP != 0 && !e.shut.Load()
}
