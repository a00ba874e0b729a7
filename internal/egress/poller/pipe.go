package poller

import (
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/nonblock"
)

// pipe is a pipe that splice(2) moves bytes through. held is how many bytes are in it.
type pipe struct {
	r, w, held int
	user       string // that has it
}

const (
	pipeSize = 256 << 10
	// pipesMost is how many pipes a loop may have. Once a user has its share of them, because it does not
	// take what they hold, its other streams are copied.
	pipesMost = 64
)

// takePipe takes a pipe that is not in use, or makes one. It returns nil if the user is to have none, or none can be made.
func (l *Loop) takePipe(user string) *pipe {
	if !l.pipes.Take(user, 1) {
		return nil
	}
	if n := len(l.spare); n > 0 {
		one := l.spare[n-1]
		l.spare = l.spare[:n-1]
		one.user = user
		return one
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		l.pipes.Give(user, 1)
		return nil
	}
	// If that is refused, the kernel's default size does as well, only slower.
	_, _ = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: ends[0], w: ends[1], user: user}
}

// returnPipe takes a stream's pipe away, if it has one. A pipe that is not empty is closed.
func (l *Loop) returnPipe(s *stream) {
	one := s.pipe
	if one == nil {
		return
	}
	s.pipe = nil
	l.pipes.Give(one.user, 1)
	if one.held == 0 {
		l.spare = append(l.spare, one)
		return
	}
	one.close()
}

func (p *pipe) close() {
	nonblock.Close(p.r)
	nonblock.Close(p.w)
}
