package rootfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

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

// A mount point that stands in where a call gives something up can be listed by all, and goes with the last container,
// also one that an earlier service has made.
func TestAMountPointThatCanBeListed(t *testing.T) {
	users := t.TempDir()
	spec := masked(t, users, "alice")
	home := filepath.Join(users, "alice", "home")
	spec.Masks = []dockerexec.Mask{{Target: "/home/none", Vacant: true, Place: filepath.Join(home, "none")}}
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
		info, err := os.Stat(filepath.Join(home, "none"))
		if err != nil || info.Mode() != os.ModeDir|listableDir {
			t.Errorf("%v, %v", info, err)
		}
		p.Release(spec)
		if _, err := os.Stat(filepath.Join(home, "none")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("it is left: %v", err)
		}
	}
}
