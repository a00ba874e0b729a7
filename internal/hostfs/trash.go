package hostfs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Trash removes trees that a tenant has written, whatever they contain. It works in the background,
// on one tree after the other, with a fixed number of descriptors and a fixed amount of memory, and
// for at most half of the time.
//
// A tree is first renamed into a folder of its own, which is all that Discard waits for. There, the
// files of a directory are removed, and its directories are moved up into the folder: so depth
// costs nothing, each directory is moved once, and no name gets longer. Resume finds what is left
// when the service ends.
type Trash struct {
	failed func(dir string, err error)

	mu    sync.Mutex
	queue []string
	more  chan struct{} // buffered; holds a token when the queue is not empty
}

// NewTrash returns a Trash, which calls failed for what could not be removed. Work does the
// removing.
func NewTrash(failed func(dir string, err error)) *Trash {
	return &Trash{failed: failed, more: make(chan struct{}, 1)}
}

// trashPrefix begins the names of the folders that trees are moved into.
const trashPrefix = ".removed-"

// Discard moves a directory away at once, into a folder that it makes in beside, which must be on
// the same file system and out of tenants' reach. A directory that does not exist is not an error.
func (t *Trash) Discard(dir, beside string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	folder := filepath.Join(beside, trashPrefix+rand.Text())
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	if err := os.Rename(dir, filepath.Join(folder, "0")); err != nil {
		return errors.Join(err, os.Remove(folder))
	}
	t.add(folder)
	return nil
}

// Resume queues what was left in the directories in parent.
func (t *Trash) Resume(parent string) error {
	left, err := filepath.Glob(filepath.Join(EscapeGlob(parent), "*", trashPrefix+"*"))
	for _, folder := range left {
		t.add(folder)
	}
	return err
}

// EscapeGlob returns a pattern for filepath.Glob that matches the name itself.
func EscapeGlob(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

func (t *Trash) add(folder string) {
	t.mu.Lock()
	t.queue = append(t.queue, folder)
	t.mu.Unlock()
	select {
	case t.more <- struct{}{}:
	default:
	}
}

func (t *Trash) take() (folder string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) > 0 {
		folder, t.queue = t.queue[0], t.queue[1:]
	}
	return folder
}

// Work removes what is queued, now and later, until ctx ends.
func (t *Trash) Work(ctx context.Context) {
	for {
		folder := t.take()
		if folder == "" {
			select {
			case <-t.more:
			case <-ctx.Done():
				return
			}
			continue
		}
		if err := RemoveTree(ctx, folder); err != nil && ctx.Err() == nil {
			t.failed(folder, err)
		}
	}
}

// removal empties one folder.
type removal struct {
	ctx    context.Context // of RemoveTree
	folder *os.File
	begun  time.Time // of this turn
	moved  uint64
	seen   int
	first  error // the first error about what could not be removed
}

// turn is how long a removal works before it rests for as long.
const turn = 10 * time.Millisecond

// RemoveTree removes a directory with everything below it, however deep or wide, with a fixed
// number of descriptors. It works half of the time, and returns when it is done or ctx ends. It is
// an error if the directory does not exist.
func RemoveTree(ctx context.Context, name string) error {
	fd, err := unix.Open(name, asList|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	r := removal{ctx: ctx, folder: os.NewFile(uintptr(fd), name), begun: time.Now()}
	defer r.folder.Close()
	for {
		r.seen, r.first = 0, nil
		before := r.moved
		if err := r.entries(r.folder, func(entry string) error {
			return r.remove(entry)
		}); err != nil {
			return err
		}
		switch err := os.Remove(name); {
		case err == nil || errors.Is(err, os.ErrNotExist):
			return nil
		case !errors.Is(err, unix.ENOTEMPTY):
			return err
		case r.seen == 0 && r.moved == before:
			return errors.Join(err, r.first) // no more progress
		}
		if _, err := r.folder.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// remove removes an entry of the folder, then the last directory that was in it, then the last one
// in that, and so on: a chain of directories is removed at once. Other directories are moved into
// the folder and come later.
func (r *removal) remove(entry string) error {
	for entry != "" {
		gone, err := r.drop(r.folder, entry)
		if gone || err != nil {
			return err
		}
		fd, err := openBeneath(int(r.folder.Fd()), entry, asList, 0)
		if err != nil {
			r.note(entry, err)
			return nil
		}
		inner, last := os.NewFile(uintptr(fd), entry), ""
		err = r.entries(inner, func(below string) error {
			gone, err := r.drop(inner, below)
			if !gone && err == nil {
				if up := r.up(inner, below); up != "" {
					last = up
				}
			}
			return err
		})
		if err = errors.Join(err, inner.Close()); err != nil {
			return err
		}
		if _, err := r.drop(r.folder, entry); err != nil {
			return err
		}
		entry = last
	}
	return nil
}

// drop removes an entry that is not a directory, or is an empty one, and reports whether it is
// gone.
func (r *removal) drop(dir *os.File, name string) (gone bool, _ error) {
	if err := r.rest(); err != nil {
		return false, err
	}
	err := unlink(int(dir.Fd()), name)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		r.seen++
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST):
		return false, nil
	}
	r.note(name, err)
	return true, nil // as far as this pass goes
}

// up moves a directory into the folder, under a name that is free there, and returns the name.
func (r *removal) up(from *os.File, name string) string {
	for range 100 {
		r.moved++
		to := fmt.Sprintf("%d-%s", r.moved, rand.Text()[:8])
		// This could replace an empty directory, but none has that name. Not all file systems can
		// be told not to replace one.
		err := unix.Renameat(int(from.Fd()), name, int(r.folder.Fd()), to)
		if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTEMPTY) {
			continue
		}
		if err != nil {
			r.moved--
			r.note(name, err)
			return ""
		}
		return to
	}
	return ""
}

func (r *removal) note(name string, err error) {
	if r.first == nil {
		r.first = fmt.Errorf("%s: %w", quoted(name), err)
	}
}

// entries calls do for the names in a directory.
func (r *removal) entries(dir *os.File, do func(string) error) error {
	for {
		names, err := dir.Readdirnames(512)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			r.note(dir.Name(), err)
			return nil
		}
		for _, name := range names {
			if err := do(name); err != nil {
				return err
			}
		}
	}
}

// rest leaves the machine to others for as long as the removal had it.
func (r *removal) rest() error {
	if time.Since(r.begun) < turn {
		return nil
	}
	select {
	case <-time.After(turn):
		r.begun = time.Now()
		return nil
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
}
