package mounts

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// Verify makes sure that a container has mounted the intended files. No command of the tenant has
// run in it yet, so its agent can be asked: accessTimes asks it for the access times of targets, as
// the agent writes them. Verify blocks, for some seconds if others interfere. An error means that
// the container must not be used.
func (g *Guard) Verify(ctx context.Context, of *life.Life, list []Mount,
	accessTimes func(targets []string) ([]string, error)) error {
	unlock, err := g.verifying.lock(ctx, list) // two containers may mount the same directory
	if err != nil {
		return fmt.Errorf(
			"cannot verify the mounts: what is mounted is being verified in another container: %w",
			err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, disturbedLimit)
	defer cancel()
	// In a fixed order, so that services that wait for each other's marks do not wait forever.
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Mount) int { return a.File.compare(b.File) })
	look := verifyOnce
	for looks, disturbed := 1, 0; ; {
		differs, err := look(ctx, list, accessTimes)
		switch {
		case err != nil || differs.target == "":
			return err
		case differs.disturbed && disturbed < undisturbedAfter && rest(ctx):
			// another service marks it, too
			disturbed++
		case differs.disturbed && rest(ctx):
			look = func(ctx context.Context, mounts []Mount,
				accessTimes func([]string) ([]string, error)) (difference, error) {
				return g.verifyUndisturbed(ctx, of, mounts, accessTimes)
			}
		case differs.disturbed:
			return fmt.Errorf(
				"cannot verify the mounts: the access time of what is mounted at %s keeps changing",
				differs.target)
		case looks == verifyTries:
			return fmt.Errorf(
				"what was mounted at %s is not what was meant: it was exchanged while the "+
					"container was made",
				differs.target)
		default:
			looks++
		}
	}
}

// verifyUndisturbed is verifyOnce while the containers are paused whose commands can set the access
// times: those that also mount the directories, and may write to them. A container that is only
// being taken into use runs no command yet.
func (g *Guard) verifyUndisturbed(ctx context.Context, of *life.Life, mounts []Mount,
	accessTimes func([]string) ([]string, error)) (none difference, err error) {
	sources := make([]string, len(mounts))
	for i, m := range mounts {
		sources[i] = m.Source
	}
	_, resume, err := g.pauseWriters(ctx, of, (*life.Life).TryHold, sources)
	defer resume()
	if err != nil {
		return none, err
	}
	return verifyOnce(ctx, mounts, accessTimes)
}

const (
	// undisturbedAfter is how often a disturbed look is repeated before those are paused who may
	// disturb it.
	undisturbedAfter = 2
	// verifyTries is how often a mount that lacks its source's mark is looked at, although the
	// source still has it.
	verifyTries = 4
	// disturbedLimit is how long others may interfere: another service, on this host or on another
	// one with the same storage, may mark the same file, and so may a program of the host.
	disturbedLimit = 10 * time.Second
	// markedLimit is how long to wait for another service's mark to go. A service that has died may
	// have left it.
	markedLimit = time.Second
	// marksBegin is how far in the future a mark is at least.
	marksBegin = time.Hour
)

// rest waits for a random time, so that services that disturb each other drift apart. It reports
// whether ctx has not ended.
func rest(ctx context.Context) bool {
	select {
	case <-time.After(time.Millisecond + mathrand.N(20*time.Millisecond)):
		return true
	case <-ctx.Done():
		return false
	}
}

// difference is a mount at which its source's mark was not seen. disturbed says that the source has
// lost the mark meanwhile, so nothing is known.
type difference struct {
	target    string
	disturbed bool
}

// verifyOnce returns the first mount that differs, or none.
func verifyOnce(ctx context.Context, mounts []Mount,
	accessTimes func(targets []string) ([]string, error)) (none difference, err error) {
	var targets []string
	var want []*mark
	given := map[File]*mark{} // one directory may be mounted at two places
	for _, m := range mounts {
		file := m.File
		if given[file] == nil {
			on, err := setMark(ctx, m)
			if err != nil {
				return none, err
			}
			if on == nil {
				continue // nothing can have been exchanged there
			}
			defer on.remove()
			given[file] = on
		}
		targets, want = append(targets, m.Target), append(want, given[file])
	}
	if len(want) == 0 {
		return none, nil
	}
	seen, err := accessTimes(targets)
	if err != nil {
		return none, fmt.Errorf("cannot verify the mounts: %w", err)
	}
	for i, on := range want {
		if i >= len(seen) || seen[i] != on.String() {
			return difference{targets[i], !on.isThere()}, nil
		}
	}
	return none, nil
}

// open opens a mount's source, and checks that it is the file that was planned.
func (m Mount) open() (fd int, st unix.Stat_t, err error) {
	fd, err = unix.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return -1, st, fmt.Errorf("cannot verify the mount at %s: %w", m.Target, err)
	}
	if err = unix.Fstat(fd, &st); err != nil {
		err = fmt.Errorf("cannot verify the mount at %s: %w", m.Target, err)
	} else if m.File != (File{Dev: uint64(st.Dev), Ino: st.Ino}) {
		err = fmt.Errorf("what is to be mounted at %s %w", m.Target, ErrExchanged)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// ErrExchanged is the error for a source that is another file than was planned.
var ErrExchanged = errors.New("has been exchanged since the call began")

// mark is an access time that was given to a mount's source. It cannot be guessed, and it is in the
// future, as only marks are. So it also tells other services that the file is being looked at.
type mark struct {
	fd         int
	at, before unix.Timespec
}

// setMark marks a mount's source, once no other mark is on it or one has been there for too long.
// The mark is nil if the file system is read-only.
func setMark(ctx context.Context, m Mount) (_ *mark, err error) {
	fd, st, err := m.open()
	if err != nil {
		return nil, err
	}
	on := &mark{fd: fd}
	for begun := time.Now(); isMark(st.Atim) && time.Since(begun) < markedLimit && rest(ctx); {
		if err := unix.Fstat(fd, &st); err != nil {
			break // set reports it, too
		}
	}
	// a mark that was left, or is another service's
	if on.before = st.Atim; st.Atim.Sec > time.Now().Unix() {
		on.before = unix.Timespec{Sec: time.Now().Unix()}
	}
	// In the future also because the kernel updates an access time that is older than a change or
	// than a day.
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	number := binary.LittleEndian.Uint64(random[:])
	ahead := marksBegin + time.Duration(number>>32%3600)*time.Second
	on.at = unix.Timespec{Sec: time.Now().Add(ahead).Unix(), Nsec: int64(number & 0xffffffff % 1e9)}
	if err = on.set(on.at); err == nil {
		return on, nil
	}
	_ = unix.Close(fd)
	if errors.Is(err, unix.EROFS) {
		return nil, nil
	}
	return nil, fmt.Errorf("cannot verify the mount at %s: %w", m.Target, err)
}

func isMark(at unix.Timespec) bool { return at.Sec > time.Now().Add(marksBegin/2).Unix() }

func (on *mark) set(at unix.Timespec) error {
	name := fmt.Sprintf("/proc/self/fd/%d", on.fd)
	return unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{at, {Nsec: unix.UTIME_OMIT}}, 0)
}

// String returns the access time as the agent writes it.
func (on *mark) String() string { return fmt.Sprintf("%d.%09d", on.at.Sec, on.at.Nsec) }

// isThere reports whether the file still has the mark.
func (on *mark) isThere() bool {
	var st unix.Stat_t
	return unix.Fstat(on.fd, &st) == nil && st.Atim == on.at
}

// remove gives the file its old access time back, unless it has another one by now: that may be a
// mark that somebody looks for.
func (on *mark) remove() {
	if on.isThere() {
		_ = on.set(on.before)
	}
	_ = unix.Close(on.fd)
}
