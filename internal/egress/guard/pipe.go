package guard

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/fair"
)

// pipe is a pipe that splice(2) moves bytes through. held is how many bytes are in it.
type pipe struct {
	r, w, held int
	user       string // that has it
}

const (
	pipeSize = 256 << 10
	// maxPipes is how many pipes a guard may have in use. Once a user has its share of them,
	// because it does not take what they hold, its other streams are copied.
	maxPipes = 64
)

// pipes are those that are not in use.
type pipes struct {
	inUse *fair.Pool
	mu    sync.Mutex
	spare []*pipe
	ended bool
}

// take returns nil if the user is to have no pipe, or none can be made.
func (ps *pipes) take(user string) *pipe {
	if !ps.inUse.Take(user, 1) {
		return nil
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if n := len(ps.spare); n > 0 {
		p := ps.spare[n-1]
		ps.spare = ps.spare[:n-1]
		p.user = user
		return p
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		ps.inUse.Give(user, 1)
		return nil
	}
	// If that is refused, the kernel's default size does as well, only slower.
	_, _ = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: ends[0], w: ends[1], user: user}
}

// give takes a pipe back. One that is not empty is closed.
func (ps *pipes) give(p *pipe) {
	ps.inUse.Give(p.user, 1)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p.held == 0 && !ps.ended {
		ps.spare = append(ps.spare, p)
		return
	}
	p.close()
}

// close closes those that are not in use, and makes give close the others.
func (ps *pipes) close() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.ended = true
	for _, p := range ps.spare {
		p.close()
	}
	ps.spare = nil
}

func (p *pipe) close() { _, _ = unix.Close(p.r), unix.Close(p.w) }
