package guard

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// splice has bytes passed both ways until both have ended, or one has failed; the flow leaves then. The
// end of one direction is passed on and leaves the other open. It does not wait: both directions have
// goroutines of their own, because what went before has grown the caller's stack, and most connections
// are idle for long.
func (f *flow) splice(client, upstream *net.TCPConn) {
	var ended atomic.Int32
	extend := func() {
		soon := time.Now().Add(f.guard.cfg.Limits.HalfClosedIdle)
		_ = client.SetDeadline(soon)
		_ = upstream.SetDeadline(soon)
	}
	moved := func() {
		if ended.Load() > 0 {
			extend()
		}
	}
	oneWay := func(to, from *net.TCPConn) {
		if f.guard.pipes.move(to, from, moved) == nil {
			_ = to.CloseWrite()
		} else {
			// Not an orderly end, so the other side must not take it for one.
			f.abort()
		}
		if ended.Add(1) == 2 {
			f.leave()
			return
		}
		extend()
	}
	f.guard.running.Go(func() { oneWay(client, upstream) })
	f.guard.running.Go(func() { oneWay(upstream, client) })
}

// pipe is what splice(2) moves bytes through. held is how many it has.
type pipe struct{ r, w, held int }

const (
	pipeSize  = 256 << 10
	pipesKept = 64
)

// pipes are the pipes that nobody uses now.
type pipes struct {
	mu     sync.Mutex
	spare  []*pipe
	closed bool
}

func (ps *pipes) get() (*pipe, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if n := len(ps.spare); n > 0 {
		p := ps.spare[n-1]
		ps.spare = ps.spare[:n-1]
		return p, nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	// If that is refused, the kernel's default size does as well, only slower.
	_, _ = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: ends[0], w: ends[1]}, nil
}

func (ps *pipes) put(p *pipe) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p.held == 0 && len(ps.spare) < pipesKept && !ps.closed {
		ps.spare = append(ps.spare, p)
		return
	}
	p.close()
}

func (p *pipe) close() {
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}

func (ps *pipes) close() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.closed = true
	for _, p := range ps.spare {
		p.close()
	}
	ps.spare = nil
}

// move passes bytes on until from has ended; moved is called after each portion. It has a pipe only
// while there is something to move.
func (ps *pipes) move(to, from *net.TCPConn, moved func()) error {
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	var m mover
	defer func() {
		if m.pipe != nil {
			ps.put(m.pipe)
		}
	}()
	fill := func(fd uintptr) bool { return m.fill(int(fd), ps) }
	drain := func(fd uintptr) bool { return m.drain(int(fd)) }
	for {
		if err := errors.Join(in.Read(fill), m.err); err != nil {
			return err
		}
		if m.pipe.held == 0 {
			return nil
		}
		if err := errors.Join(out.Write(drain), m.err); err != nil {
			return err
		}
		moved()
	}
}

// mover is the state of one direction. Its functions report whether they are done; if not, they are
// called again when the socket is ready.
type mover struct {
	pipe *pipe
	err  error
}

func (m *mover) fill(socket int, ps *pipes) bool {
	if m.pipe == nil {
		if m.pipe, m.err = ps.get(); m.err != nil {
			return true
		}
	}
	n, err := spliceSome(socket, m.pipe.w, pipeSize)
	if errors.Is(err, unix.EAGAIN) {
		ps.put(m.pipe)
		m.pipe = nil
		return false
	}
	m.pipe.held, m.err = n, err
	return true
}

func (m *mover) drain(socket int) bool {
	for m.pipe.held > 0 {
		n, err := spliceSome(m.pipe.r, socket, m.pipe.held)
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if err != nil {
			m.err = err
			return true
		}
		m.pipe.held -= n
	}
	return true
}

func spliceSome(from, to, most int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, most, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if !errors.Is(err, unix.EINTR) {
			return max(int(n), 0), err
		}
	}
}
