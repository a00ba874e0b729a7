package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
)

// A mask belongs to the file that it was mounted on, and so does a mount that keeps a file from
// being written. When somebody on the host puts another file in its place, the commands that are
// running would see or write that one. The next call gets another Spec. The watch is for the
// running commands: their containers are expelled as soon as this happens.

// mounted is a Spec that has containers: the next one may be made before the previous one is gone.
type mounted struct {
	dockerexec.Spec
	since      uint64 // the position from which on events are about them
	containers int
}

// Watch expels containers whose masks no longer cover what they did, until ctx ends. It calls expel
// for each of them without holding a lock, and may call it again for the same one. After an error,
// it expels those that nothing guards but the watch, and until the next Watch none is made.
func (p *Preparer) Watch(ctx context.Context, expel func(dockerexec.Fingerprint)) error {
	err := p.watch(ctx, expel)
	if err != nil {
		for _, fingerprint := range p.lose() {
			expel(fingerprint)
		}
	}
	return err
}

// lose marks the watch as lost, and returns the containers that nothing else guards.
func (p *Preparer) lose() (unguarded []dockerexec.Fingerprint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches.lost = true
	for fingerprint, known := range p.mounted {
		if needsWatch(known.Spec) {
			unguarded = append(unguarded, fingerprint)
		}
	}
	return unguarded
}

// needsWatch reports whether something is kept from a Spec's container by the watch alone.
func needsWatch(spec dockerexec.Spec) bool {
	return len(spec.Symlinks) > 0 || slices.ContainsFunc(spec.Masks, func(m dockerexec.Mask) bool {
		return m.Absent
	})
}

func (p *Preparer) watch(ctx context.Context, expel func(dockerexec.Fingerprint)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("cannot watch the homes: %w", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	unwatched := p.begin(fd)
	end := func() {
		p.mu.Lock()
		p.watches.on = false
		p.mu.Unlock()
		_ = file.Close() // waits for the reader of events, which needs the lock
	}
	defer end()
	defer context.AfterFunc(ctx, end)()
	for _, fingerprint := range unwatched {
		expel(fingerprint)
	}
	for {
		gone, err := p.await(file)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("cannot watch the homes any more: %w", err)
		}
		for _, fingerprint := range gone {
			expel(fingerprint)
		}
		select {
		case <-time.After(between): // the events until then are handled together
		case <-ctx.Done():
		}
	}
}

// begin starts the watch for all Specs that have a container, and returns those that cannot be
// watched.
func (p *Preparer) begin(fd int) (unwatched []dockerexec.Fingerprint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches = newWatches(fd)
	answers := p.askAll(func(yield func(dockerexec.Spec) bool) {
		for _, known := range p.mounted {
			if !yield(known.Spec) {
				return
			}
		}
	})
	for fingerprint, known := range p.mounted {
		err := answers(known.Spec)
		if err == nil {
			err = p.watchSpec(known.Spec)
		}
		if err == nil && !p.isUnwatchedIntact(known.Spec) {
			err = errors.New("it came to exist, or a link to it was changed, before")
		}
		if err != nil {
			p.logUnwatched(known, err)
			unwatched = append(unwatched, fingerprint)
		}
		known.since = 0
		p.mounted[fingerprint] = known
	}
	return unwatched
}

func (p *Preparer) logUnwatched(known mounted, err error) {
	p.log.Error().Err(err).Str("user", known.User).
		Msg("a container is ended: what it must not see cannot be watched")
}

// await waits for events, and returns the containers that must go because of them.
func (p *Preparer) await(file *os.File) (gone []dockerexec.Fingerprint, err error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = conn.Read(func(fd uintptr) bool {
		// Events are read and handled under one lock, so that all others are still in the kernel.
		p.mu.Lock()
		defer p.mu.Unlock()
		n, err := unix.Read(int(fd), p.watches.load.buffer)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			return false
		case err != nil:
			failed = err
		default:
			gone = p.handle(p.watches.load.buffer[:n])
		}
		return true
	})
	return gone, errors.Join(err, failed)
}

// handle returns the containers that must go after these events; p.mu is held.
func (p *Preparer) handle(events []byte) (gone []dockerexec.Fingerprint) {
	load := p.watches.load
	changed, lost := p.watches.parse(events, p.mounted)
	loudest := load.drained(lost || len(events) < len(load.buffer)/2)
	broken := map[dockerexec.Fingerprint]bool{} // of those that are to be checked again
	took := map[dockerexec.Fingerprint]time.Duration{}
	for fingerprint, known := range p.mounted {
		if !lost && len(changed[fingerprint]) == 0 {
			continue
		}
		begun := time.Now()
		if touched, isBroken := p.touches(changed[fingerprint], known); lost || touched {
			broken[fingerprint], took[fingerprint] = isBroken, time.Since(begun)
		}
	}
	answers := p.askAll(func(yield func(dockerexec.Spec) bool) {
		for fingerprint := range broken {
			if !yield(p.mounted[fingerprint].Spec) {
				return
			}
		}
	})
	for fingerprint, isBroken := range broken {
		known := p.mounted[fingerprint]
		err := answers(known.Spec) // for which nobody is charged
		begun := time.Now()
		if err == nil {
			err = p.watchSpec(known.Spec)
		}
		intact := err == nil && !isBroken && p.isIntact(known.Spec)
		tooMuch := lost && loudest[known.User] ||
			!lost && !load.spend(known.User, begun, took[fingerprint]+time.Since(begun))
		if err == nil && tooMuch {
			err = errTooMuch
		}
		if err != nil {
			p.logUnwatched(known, err)
		}
		if err != nil || !intact {
			gone = append(gone, fingerprint)
		}
	}
	return gone
}

// maxWatched is how many directories may be watched for one container, and maxWatchedOfUser for all
// of a user's: the kernel's limit is for all users together. The bounds of policy keep one
// container below maxWatched.
const (
	maxWatched       = 4000
	maxWatchedOfUser = 8000
)

// watchSpec watches the directories in which something that is to be hidden may appear, as they are
// now, and no others for that container; p.mu is held. A container must not run unless all of them
// can be watched. A directory that was watched before stays watched in between: no event is lost.
func (p *Preparer) watchSpec(spec dockerexec.Spec) error {
	if p.watches.lost && needsWatch(spec) {
		return fmt.Errorf("what is to be hidden cannot be watched now: %w", cerrdefs.ErrUnavailable)
	}
	if !p.watches.on {
		return nil
	}
	wanted := p.wantedDirs(spec)
	if len(wanted) > maxWatched {
		return fmt.Errorf(
			"%d directories would have to be watched, more than the %d for one container",
			len(wanted), maxWatched)
	}
	own := spec.Fingerprint()
	if n := len(wanted) + p.watchedOfOthers(spec.User, own); n > maxWatchedOfUser {
		return fmt.Errorf(
			"%d directories would have to be watched, more than the %d for all containers of one user: %w",
			n, maxWatchedOfUser, cerrdefs.ErrUnavailable)
	}
	dirs := p.rootDirs(spec)
	defer dirs.close()
	now := map[watchedDir]bool{}
	for name, at := range wanted {
		dir, err := p.watchDir(dirs, name, at, own)
		switch {
		case err == nil:
			now[dir] = true
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf(
				"the kernel watches no more directories for this user: raise fs.inotify.max_user_watches: %w",
				cerrdefs.ErrUnavailable)
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) &&
			!errors.Is(err, unix.ELOOP):
			return fmt.Errorf("cannot watch what is hidden: %w", err)
		}
		// What does not exist or is not a directory has nothing in it; its appearance is an event
		// in the directory above. The same goes for a link: what is behind it is not looked at.
	}
	p.watches.keep(own, now)
	return nil
}

// watchDir watches a host directory, or a file that stands in, through its descriptor, to which no
// link has led.
func (p *Preparer) watchDir(dirs *rootDirs, name string, at wantedDir,
	holder dockerexec.Fingerprint) (watchedDir, error) {
	dir, rest, err := dirs.mustFind(at.target)
	if err != nil {
		return watchedDir{}, err
	}
	if rest == "" {
		rest = "."
	}
	fd, err := openBeneath(dir.fd, rest, unix.O_PATH)
	if err != nil {
		return watchedDir{}, err
	}
	defer unix.Close(fd)
	it, err := identifyOpen(fd)
	switch {
	case err != nil:
		return watchedDir{}, err
	case it.mode&unix.S_IFMT == unix.S_IFDIR:
		return p.watches.add(fd, name, watchedEvents, at.want, holder)
	case it.isStandIn():
		return p.watches.add(fd, name, fileEvents, at.want, holder)
	}
	return watchedDir{}, unix.ENOTDIR
}

// watchedOfOthers returns how many directories are watched for a user's other containers.
func (p *Preparer) watchedOfOthers(user string, own dockerexec.Fingerprint) (n int) {
	for holder, known := range p.mounted {
		if holder != own && known.User == user {
			n += len(p.watches.held[holder])
		}
	}
	return n
}

// unwatch removes the watches that no other container needs; p.mu is held.
func (p *Preparer) unwatch(spec dockerexec.Spec) {
	if p.watches.on {
		p.watches.keep(spec.Fingerprint(), nil)
	}
}

// touches reports whether a path at which something has appeared or gone is at or above one of a
// Spec's masks or protected mounts, or below a mask. broken says that a protected mount is lost: it
// does not come back, even when the same file does.
func (p *Preparer) touches(changed map[string]uint64, known mounted) (touched, broken bool) {
	masks, toMasks, toMounts := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range known.Masks {
		if view, rest, ok := p.viewOf(known.Spec, m.Target); ok {
			masks[view.at(rest)] = true
			addUpwards(toMasks, view.at(rest))
		}
	}
	for _, link := range known.Symlinks {
		if view, rest, ok := p.viewOf(known.Spec, link.Target); ok {
			addUpwards(toMasks, view.at(rest))
		}
	}
	for _, m := range protectedMounts(known.Spec) {
		if view, rest, ok := p.viewOf(known.Spec, m.Target); ok {
			addUpwards(toMounts, view.at(rest))
		}
	}
	for name, at := range changed { // there may be many, so each is only looked up
		touched = touched || toMasks[name] || toMounts[name] || isWithin(name, masks)
		broken = broken || toMounts[name] && at > known.since
	}
	return touched, broken
}

// addUpwards adds an absolute path and all directories above it.
func addUpwards(names map[string]bool, name string) {
	for ; !names[name]; name = filepath.Dir(name) {
		names[name] = true
	}
}

// isWithin reports whether an absolute path is one of dirs or below it.
func isWithin(name string, dirs map[string]bool) bool {
	for !dirs[name] {
		above := filepath.Dir(name)
		if above == name {
			return false
		}
		name = above
	}
	return true
}

// isIntact reports whether a Spec's masks still cover what they were mounted on, and its protected
// mounts still show what is there; p.mu is held.
func (p *Preparer) isIntact(spec dockerexec.Spec) bool {
	dirs := p.rootDirs(spec)
	defer dirs.close()
	for _, m := range spec.Masks {
		if !p.covers(dirs, m) {
			return false
		}
	}
	for _, link := range spec.Symlinks {
		if !leadsOn(dirs, link) {
			return false
		}
	}
	for _, m := range protectedMounts(spec) {
		dir, rest, err := dirs.mustFind(m.Target)
		if err != nil {
			return false
		}
		if state, err := p.empty.stateOf(dir.fd, rest); err != nil || !state.exists ||
			!state.id.Same(m.ID) {
			return false
		}
	}
	return true
}

// isUnwatchedIntact is isUnchanged for a Spec that was not watched until now; p.mu is held.
func (p *Preparer) isUnwatchedIntact(spec dockerexec.Spec) bool {
	dirs := p.rootDirs(spec)
	defer dirs.close()
	return p.isUnchanged(dirs)
}

// isUnchanged is isIntact for that on which nothing is mounted, so that nothing guards it but the
// watch.
func (p *Preparer) isUnchanged(dirs *rootDirs) bool {
	return !slices.ContainsFunc(dirs.spec.Masks, func(m dockerexec.Mask) bool {
		return m.Absent && !p.covers(dirs, m)
	}) &&
		!slices.ContainsFunc(dirs.spec.Symlinks, func(link dockerexec.Symlink) bool {
			return !leadsOn(dirs, link)
		})
}

// covers reports whether a mask covers what it was made for.
func (p *Preparer) covers(dirs *rootDirs, m dockerexec.Mask) bool {
	dir, rest, err := dirs.find(m.Target)
	if err != nil || dir == nil {
		return err == nil
	}
	state, err := p.empty.stateOf(dir.fd, rest)
	return err == nil && state.maskedBy(m) == m.ID && (m.Place == "" || state.exists)
}

// leadsOn reports whether a symbolic link is as it was.
func leadsOn(dirs *rootDirs, link dockerexec.Symlink) bool {
	dir, rest, err := dirs.mustFind(link.Target)
	if err != nil {
		return false
	}
	parent, leaf, err := openParent(dir.fd, rest)
	if err != nil {
		return false
	}
	defer unix.Close(parent)
	text, err := readLink(parent, leaf)
	return err == nil && text == link.Text
}
