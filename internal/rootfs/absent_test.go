package rootfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// absent is a Spec that guards three paths by the watch alone: one that is not there, one below a file, and a link.
func absent(t *testing.T, users string) (spec dockerexec.Spec, home string) {
	t.Helper()
	spec = masked(t, users, "alice")
	home = filepath.Join(users, "alice", "home")
	spec.Masks = []dockerexec.Mask{{Target: "/home/a/none", Absent: true}, {Target: "/home/file/x", Absent: true}}
	spec.Symlinks = []dockerexec.Symlink{{Target: "/home/a/link", Text: "../vault"}}
	if err := errors.Join(os.Mkdir(filepath.Join(home, "a"), 0o755), os.WriteFile(filepath.Join(home, "file"), nil, 0o600),
		os.Symlink("../vault", filepath.Join(home, "a/link"))); err != nil {
		t.Fatal(err)
	}
	return spec, home
}

// attacks are what makes a container of absent see, by another name, what it must not.
var attacks = map[string]func(home string) error{
	"it comes to exist": func(home string) error { return os.WriteFile(filepath.Join(home, "a/none"), nil, 0o600) },
	"a directory takes the file's place": func(home string) error {
		return errors.Join(os.Remove(filepath.Join(home, "file")), os.MkdirAll(filepath.Join(home, "file/x"), 0o755))
	},
	"the link is exchanged": func(home string) error {
		return errors.Join(os.Symlink("../other", filepath.Join(home, "new")), os.Rename(filepath.Join(home, "new"), filepath.Join(home, "a/link")))
	},
	"a directory takes the link's place": func(home string) error {
		return errors.Join(os.Remove(filepath.Join(home, "a/link")), os.Mkdir(filepath.Join(home, "a/link"), 0o755))
	},
	"another directory takes the place of the one above": func(home string) error {
		return errors.Join(os.MkdirAll(filepath.Join(home, "b/none"), 0o755), os.Rename(filepath.Join(home, "a"), filepath.Join(home, "c")), os.Rename(filepath.Join(home, "b"), filepath.Join(home, "a")))
	},
}

// What changed since a call was planned keeps its container from being made, and nothing is remembered of it.
func TestAbsentPathMadeBeforePrepareIsRefused(t *testing.T) {
	for name, change := range attacks {
		users := t.TempDir()
		p := NewPreparer(users, zerolog.Nop())
		spec, home := absent(t, users)
		if err := change(home); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Prepare(spec); !cerrdefs.IsUnavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
		if len(p.mounted)+len(p.needed) != 0 {
			t.Errorf("%s: %v, %v", name, p.mounted, p.needed)
		}
	}
}

// What changes while a container runs ends it, and so does what has changed before the watch began.
func TestAbsentPathMadeLaterExpels(t *testing.T) {
	for name, change := range attacks {
		for _, watched := range []bool{true, false} {
			users := t.TempDir()
			p := NewPreparer(users, zerolog.Nop())
			spec, home := absent(t, users)
			if _, err := p.Prepare(spec); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			expelled, over := make(chan dockerexec.Fingerprint, 100), make(chan error, 1)
			watch := func() {
				over <- p.Watch(ctx, func(f dockerexec.Fingerprint) {
					select {
					case expelled <- f:
					default:
					}
				})
			}
			if watched {
				go watch()
				waittest.Until(t, "it is watched", func() bool {
					p.mu.Lock()
					defer p.mu.Unlock()
					return p.watches.on && len(p.watches.held) > 0
				})
			}
			if len(expelled) != 0 {
				t.Errorf("%s: expelled before", name)
			}
			if err := change(home); err != nil {
				t.Fatal(err)
			}
			if !watched {
				go watch()
			}
			select {
			case <-expelled:
			case <-ctx.Done():
				t.Errorf("%s (watched before: %t): the container is kept", name, watched)
			}
			cancel()
			if err := <-over; err != nil {
				t.Error(err)
			}
		}
	}
}

// What stands in can be listed or read by all, whatever its directory hands on. It goes with the last container, also if
// an earlier service has made it. What root has written into the file stays.
func TestWhatStandsIn(t *testing.T) {
	users := t.TempDir()
	spec := masked(t, users, "alice")
	home := filepath.Join(users, "alice", "home")
	spec.Masks = []dockerexec.Mask{
		{Target: "/home/none", Vacant: true, Place: filepath.Join(home, "none")}, {Target: "/home/.ssh", Place: filepath.Join(home, ".ssh")},
		{Target: "/home/.netrc", File: true, Listable: true, Place: filepath.Join(home, ".netrc")},
	}
	if err := os.Chmod(home, 0o755|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	want := map[string]os.FileMode{"none": os.ModeDir | listableDir, ".ssh": os.ModeDir | listableDir, ".netrc": readableFile}
	for _, earlier := range []bool{false, true} {
		p := NewPreparer(users, zerolog.Nop())
		if _, err := p.Prepare(spec); err != nil {
			t.Fatal(err)
		}
		if earlier {
			p = NewPreparer(users, zerolog.Nop())
			if _, err := p.Prepare(spec); err != nil {
				t.Fatal(err)
			}
		}
		for name, mode := range want {
			if info, err := os.Stat(filepath.Join(home, name)); err != nil || info.Mode() != mode {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		p.Release(spec)
		if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	p := NewPreparer(users, zerolog.Nop())
	if _, err := p.Prepare(spec); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".netrc"), []byte("password"), 0); err != nil {
		t.Fatal(err)
	}
	p.Release(spec)
	if text, err := os.ReadFile(filepath.Join(home, ".netrc")); string(text) != "password" {
		t.Errorf("what root has written: %q, %v", text, err)
	}
}

// An empty file of root's at a path that a call hides is somebody's: it is masked as what it is, and stays.
func TestAFileThatIsOnlyLikeOneThatStandsIn(t *testing.T) {
	users := t.TempDir()
	p := NewPreparer(users, zerolog.Nop())
	spec := masked(t, users, "alice")
	name := filepath.Join(users, "alice/home/__init__.py")
	if err := os.WriteFile(name, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	it, err := identifyNoFollow(name)
	if err != nil {
		t.Fatal(err)
	}
	it.id.Since = it.changed
	spec.Masks = []dockerexec.Mask{{Target: "/home/__init__.py", File: true, Place: name, ID: it.id}}
	if _, err := p.Prepare(spec); err != nil {
		t.Fatal(err)
	}
	if !p.isIntact(spec) {
		t.Error("its mask does not cover it")
	}
	p.Release(spec)
	if _, err := os.Stat(name); err != nil {
		t.Error(err)
	}
}

// readsAndWrites are a Spec of a call that cannot write to the home, and one of a call that can, so that something stands in.
func readsAndWrites(t *testing.T, users string) (reads, writes dockerexec.Spec) {
	t.Helper()
	reads, writes = masked(t, users, "alice"), masked(t, users, "alice")
	reads.Masks = []dockerexec.Mask{{Target: "/home/.netrc", Absent: true}}
	writes.Masks = []dockerexec.Mask{{Target: "/home/.netrc", File: true, Listable: true, Place: filepath.Join(users, "alice/home/.netrc")}}
	return reads, writes
}

// A call sees the file that stands in for another one. When root fills it, in place, the call's container goes.
func TestAStandInThatIsFilledExpels(t *testing.T) {
	for _, first := range []string{"reads", "writes"} {
		users := t.TempDir()
		p := NewPreparer(users, zerolog.Nop())
		reads, writes := readsAndWrites(t, users)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		expelled, over := make(chan dockerexec.Fingerprint, 100), make(chan error, 1)
		go func() { over <- p.Watch(ctx, func(f dockerexec.Fingerprint) { expelled <- f }) }()
		waittest.Until(t, "the watch", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.watches.on
		})
		order := []dockerexec.Spec{reads, writes}
		if first == "writes" {
			slices.Reverse(order)
		}
		for _, spec := range order {
			if _, err := p.Prepare(spec); err != nil {
				t.Fatal(err)
			}
		}
		netrc := filepath.Join(users, "alice/home/.netrc")
		waittest.Until(t, "the file is watched", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			for watched := range p.watches.held[reads.Fingerprint()] {
				if watched.name == netrc {
					return true
				}
			}
			return false
		})
		if len(expelled) > 0 {
			t.Errorf("%s first: expelled for what only stands in", first)
		}
		if err := os.WriteFile(netrc, []byte("password"), 0); err != nil {
			t.Fatal(err)
		}
		for gone := false; !gone; {
			select {
			case who := <-expelled:
				gone = who == reads.Fingerprint()
			case <-ctx.Done():
				t.Fatalf("%s first: the container is kept", first)
			}
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

// Without a watch, what rests on it goes, and is not made until there is one again.
func TestAWatchThatIsLost(t *testing.T) {
	users := t.TempDir()
	p := NewPreparer(users, zerolog.Nop())
	reads, writes := readsAndWrites(t, users)
	for _, spec := range []dockerexec.Spec{reads, writes} {
		if _, err := p.Prepare(spec); err != nil {
			t.Fatal(err)
		}
	}
	if gone := p.lose(); !slices.Equal(gone, []dockerexec.Fingerprint{reads.Fingerprint()}) {
		t.Errorf("expelled are %v", gone)
	}
	if _, err := p.Prepare(reads); !cerrdefs.IsUnavailable(err) {
		t.Errorf("made without a watch: %v", err)
	}
	if _, err := p.Prepare(writes); err != nil {
		t.Errorf("what has its masks: %v", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	p.begin(fd)
	if _, err := p.Prepare(reads); err != nil {
		t.Errorf("with a watch again: %v", err)
	}
}
