package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/policy"
)

// A mask belongs to the file that it was put on. When somebody on the host puts another one in its
// place while commands are running, those commands would see it. The next call finds another Spec;
// the watch is for those that are running: their containers are expelled as soon as it happens.

// changes are the events that put something under a name, or take away what a mask was put on.
const changes = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_ONLYDIR

// watch is the homes that are looked at.
type watch struct {
	on   bool
	fd   int            // inotify; it is Watch's to close
	dirs map[int]string // by watch descriptor: the directory on the host
}

// Watch expels containers whose masks hide something else than they did, until ctx ends. expel is
// called for each of them, with no lock held; it may be called again for the same one.
func (g *Ground) Watch(ctx context.Context, expel func(dockerexec.Fingerprint)) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("cannot watch the homes: %w", err)
	}
	file := os.NewFile(uintptr(fd), "inotify")
	g.mu.Lock()
	g.watched = watch{on: true, fd: fd, dirs: map[int]string{}}
	for _, spec := range g.laid {
		g.watchHome(spec)
	}
	g.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.watched.on = false
		_ = file.Close()
	})
	defer stop()
	buffer := make([]byte, 64<<10)
	for {
		n, err := file.Read(buffer)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
				return nil
			}
			return fmt.Errorf("cannot watch the homes any more: %w", err)
		}
		for _, fingerprint := range g.changed(buffer[:n]) {
			expel(fingerprint)
		}
	}
}

// watchHome adds the directories in which something that is to be hidden may appear; g.mu is held.
func (g *Ground) watchHome(spec dockerexec.Spec) {
	if !g.watched.on {
		return
	}
	home := filepath.Join(g.usersDir, spec.User, "home")
	dirs := map[string]bool{home: true}
	for _, m := range spec.Masks {
		if rest, ok := strings.CutPrefix(m.Target, policy.Home.String()+"/"); ok {
			for ; rest != "."; rest = path.Dir(rest) {
				dirs[filepath.Join(home, rest)] = true
			}
		}
	}
	for dir := range dirs {
		// What is no directory, or not there, has nothing in it; its own appearance is an event above.
		wd, err := unix.InotifyAddWatch(g.watched.fd, dir, changes|unix.IN_DONT_FOLLOW)
		if err == nil {
			g.watched.dirs[wd] = dir
		}
	}
}

// forgetHome takes away the watches of a home in which no container is left; g.mu is held.
func (g *Ground) forgetHome(user string) {
	for _, spec := range g.laid {
		if spec.User == user {
			return
		}
	}
	home := filepath.Join(g.usersDir, user, "home")
	for wd, dir := range g.watched.dirs {
		if g.watched.on && within(dir, home) {
			_, _ = unix.InotifyRmWatch(g.watched.fd, uint32(wd))
			delete(g.watched.dirs, wd)
		}
	}
}

// changed are the containers that have to go after these events.
func (g *Ground) changed(events []byte) []dockerexec.Fingerprint {
	g.mu.Lock()
	defer g.mu.Unlock()
	homes := map[string]bool{}
	lost := false
	for len(events) >= unix.SizeofInotifyEvent {
		event := (*unix.InotifyEvent)(unsafe.Pointer(&events[0]))
		name := events[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+int(event.Len)]
		events = events[unix.SizeofInotifyEvent+int(event.Len):]
		lost = lost || event.Mask&unix.IN_Q_OVERFLOW != 0
		dir, known := g.watched.dirs[int(event.Wd)]
		if event.Mask&unix.IN_IGNORED != 0 {
			delete(g.watched.dirs, int(event.Wd))
			continue
		}
		if known {
			name, _, _ := bytes.Cut(name, []byte{0})
			homes[filepath.Join(dir, string(name))] = true
		}
	}
	var gone []dockerexec.Fingerprint
	for fingerprint, spec := range g.laid {
		home := filepath.Join(g.usersDir, spec.User, "home")
		if !lost && !touches(homes, home, spec) {
			continue
		}
		g.watchHome(spec)
		if !g.holds(spec) {
			gone = append(gone, fingerprint)
		}
	}
	return gone
}

// touches says whether a path at which something has appeared is one of a Spec's masks, or above or
// below one.
func touches(appeared map[string]bool, home string, spec dockerexec.Spec) bool {
	for name := range appeared {
		rest, ok := strings.CutPrefix(name, home+"/")
		if !ok {
			continue
		}
		inside := path.Join(policy.Home.String(), rest)
		for _, m := range spec.Masks {
			if within(inside, m.Target) || within(m.Target, inside) {
				return true
			}
		}
	}
	return false
}

// holds says whether a Spec's masks still hide what they were put on; g.mu is held.
func (g *Ground) holds(spec dockerexec.Spec) bool {
	site, err := g.open(spec)
	if err != nil {
		return false
	}
	defer site.close()
	for _, m := range spec.Masks {
		rest, ok := strings.CutPrefix(m.Target, policy.Home.String()+"/")
		if !ok {
			continue
		}
		there, err := (&home{fd: site.fd}).lookAt(rest)
		if err != nil || there.hiddenBy(m) != m.ID || (m.Place != "" && !there.exists) {
			return false
		}
	}
	return true
}
