package rootfs

import (
	"fmt"
	"iter"
	"path"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
)

// questions are the directories that were asked whether they answer, and have not answered yet. A
// hanging network filesystem, or one that a program serves, keeps whoever asks it in the kernel. So
// it is asked in a goroutine of its own, one for each directory, before any lock is taken that
// others wait for.
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
	// watchLimit is how long it may take to answer the watch, for which all others wait. A home
	// that is only slow, on a busy host, answers in time.
	watchLimit = 2 * time.Second
)

// ask fails if a directory does not answer within a limit, and fails at once while it still does
// not. With fresh, the filesystem itself has to answer, instead of what this host has cached of it.
func (q *questions) ask(dir, whose string, fresh bool, limit time.Duration) error {
	return q.begin(dir, fresh).wait(whose, limit)
}

// begin asks a directory and does not wait. The question is the one that the directory has not
// answered yet, if there is one.
func (q *questions) begin(dir string, fresh bool) question {
	q.mu.Lock()
	defer q.mu.Unlock()
	it, asked := q.open[dir]
	if asked {
		return it
	}
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
	return it
}

// wait fails if the question is not answered within a limit of when it was asked.
func (it question) wait(whose string, limit time.Duration) error {
	late := time.NewTimer(limit - time.Since(it.since))
	defer late.Stop()
	select {
	case <-it.answered:
	case <-late.C:
	}
	select { // the limit of one that has answered may have passed while others were waited for
	case <-it.answered:
		return nil
	default:
		return fmt.Errorf("%s does not answer: the operator has to check its storage: %w", whose,
			cerrdefs.ErrUnavailable)
	}
}

// mountedDir is a directory of the host that a Spec mounts, and what messages call it.
type mountedDir struct{ dir, whose string }

func (p *Preparer) dirsOf(spec dockerexec.Spec) []mountedDir {
	dirs := []mountedDir{{path.Join(p.usersDir, spec.User, "home"), "the home"}}
	for _, m := range spec.Mounts {
		dirs = append(dirs, mountedDir{m.Source, "the directory that is mounted at " + m.Target})
	}
	return dirs
}

// ask fails if something that a Spec mounts does not answer.
func (p *Preparer) ask(spec dockerexec.Spec, limit time.Duration) error {
	for _, d := range p.dirsOf(spec) {
		if err := p.questions.ask(d.dir, d.whose, true, limit); err != nil {
			return err
		}
	}
	return nil
}

// askAll asks everything that Specs mount at the same time, once, so that watchLimit is for all of
// it together. The result fails for a Spec of which something does not answer.
func (p *Preparer) askAll(specs iter.Seq[dockerexec.Spec]) (answers func(dockerexec.Spec) error) {
	asked := map[string]question{}
	for spec := range specs {
		for _, d := range p.dirsOf(spec) {
			if _, is := asked[d.dir]; !is {
				asked[d.dir] = p.questions.begin(d.dir, true)
			}
		}
	}
	return func(spec dockerexec.Spec) error {
		for _, d := range p.dirsOf(spec) {
			if err := asked[d.dir].wait(d.whose, watchLimit); err != nil {
				return err
			}
		}
		return nil
	}
}
