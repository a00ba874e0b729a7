package rootfs

import (
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// questions are the directories that have been asked whether they answer, and have not yet. A filesystem of a network, or of a
// program, that hangs keeps whoever asks it in the kernel. So it is asked in a goroutine of its own, one for each
// directory, before anything that others wait for is held.
type questions struct {
	mu   sync.Mutex
	open map[string]question
}

type question struct {
	since    time.Time
	answered chan struct{}
}

// answerLimit is how long a directory may take to answer.
const answerLimit = 5 * time.Second

// ask fails when a directory does not answer, and at once while it has not for answerLimit. With fresh it is the filesystem that
// answers, and not what is known of it here.
func (q *questions) ask(dir, whose string, fresh bool) error {
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
	late := time.NewTimer(answerLimit - time.Since(it.since))
	defer late.Stop()
	select {
	case <-it.answered:
		return nil
	case <-late.C:
		return fmt.Errorf("%s does not answer: the operator has to see to its storage: %w", whose, cerrdefs.ErrUnavailable)
	}
}
