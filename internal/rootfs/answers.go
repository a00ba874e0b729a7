package rootfs

import (
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// questions are the directories that were asked whether they answer, and have not answered yet. A hanging
// network filesystem, or one that a program serves, keeps whoever asks it in the kernel. So it is asked in a
// goroutine of its own, one for each directory, before any lock is taken that others wait for.
type questions struct {
	mu   sync.Mutex
	open map[string]question
}

type question struct {
	since    time.Time
	answered chan struct{}
}

const (
	// answerLimit is how long a directory may take to answer a call, which waits alone.
	answerLimit = 5 * time.Second
	// watchLimit is how long it may take to answer the watch, for which all others wait. A home that is only slow, on a busy
	// host, answers in time.
	watchLimit = 2 * time.Second
)

// ask fails if a directory does not answer within a limit, and fails at once while it still does not. With fresh,
// the filesystem itself has to answer, instead of what this host has cached of it.
func (q *questions) ask(dir, whose string, fresh bool, limit time.Duration) error {
	q.mu.Lock()
	it, asked := q.open[dir]
	if !asked {
		it = question{time.Now(), make(chan struct{})}
		if q.open == nil {
			q.open = map[string]question{}
		}
		q.open[dir] = it
		go func() {
			flags := unix.AT_NO_AUTOMOUNT
			if fresh {
				flags |= unix.AT_STATX_FORCE_SYNC
			}
			var st unix.Statx_t
			_ = unix.Statx(unix.AT_FDCWD, dir, flags, unix.STATX_BASIC_STATS, &st) // an error is an answer
			q.mu.Lock()
			defer q.mu.Unlock()
			delete(q.open, dir)
			close(it.answered)
		}()
	}
	q.mu.Unlock()
	late := time.NewTimer(limit - time.Since(it.since))
	defer late.Stop()
	select {
	case <-it.answered:
		return nil
	case <-late.C:
		return fmt.Errorf("%s does not answer: the operator has to check its storage: %w", whose, cerrdefs.ErrUnavailable)
	}
}
