package rootfs

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hostfs"
)

// masked is a user with a home, from whom ~/.ssh is hidden, which is not there.
func masked(t *testing.T, users, user string) dockerexec.Spec {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(users, user, "home"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dockerexec.Spec{User: user, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Masks: []dockerexec.Mask{{Target: "/home/.ssh"}}}
}

// A Spec's next container may be prepared before the one before has been released, and is watched all the same.
func TestTheNextContainerIsWatched(t *testing.T) {
	users := t.TempDir()
	p := NewPreparer(users, zerolog.Nop())
	alice := masked(t, users, "alice")
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	p.begin(fd)
	for range 2 {
		if _, err := p.Prepare(alice); err != nil {
			t.Fatal(err)
		}
	}
	for left := 1; left >= 0; left-- {
		p.Release(alice)
		if _, known := p.mounted[alice.Fingerprint()]; known != (left > 0) || (len(p.watches.held[alice.Fingerprint()]) > 0) != known {
			t.Errorf("with %d containers left it is known: %t, and watched in %d directories", left, known, len(p.watches.held[alice.Fingerprint()]))
		}
	}
}

// The watch ends while things happen, of which each has to be looked at.
func TestTheWatchEnds(t *testing.T) {
	users := t.TempDir()
	p := NewPreparer(users, zerolog.Nop())
	alice := masked(t, users, "alice")
	if _, err := p.Prepare(alice); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(users, "alice", "home", ".ssh")
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		expelled, over := make(chan dockerexec.Fingerprint), make(chan error, 1)
		go func() {
			over <- p.Watch(ctx, func(f dockerexec.Fingerprint) {
				select {
				case expelled <- f:
				case <-ctx.Done():
				}
			})
		}()
		for watched := false; !watched; {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			select {
			case <-expelled:
				watched = true
			case <-time.After(time.Millisecond): // it did not watch yet
			}
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

// TestNoWatchesLeft is told by another process, in a user namespace in which the kernel watches one directory.
func TestNoWatchesLeft(t *testing.T) {
	const inside = "TEST_NO_WATCHES_LEFT"
	if os.Getenv(inside) != "" {
		noWatchesLeft(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestNoWatchesLeft$")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v (this test needs user namespaces)\n%s", err, out)
	}
}

// A container of which not all can be watched that must not be seen does not begin, or goes.
func noWatchesLeft(t *testing.T) {
	if err := os.WriteFile("/proc/sys/user/max_inotify_watches", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	users := t.TempDir()
	p := NewPreparer(users, zerolog.Nop())
	lay := func(s dockerexec.Spec) error { _, err := p.Prepare(s); return err }
	alice, bob, carol := masked(t, users, "alice"), masked(t, users, "bob"), masked(t, users, "carol")
	for _, s := range []dockerexec.Spec{alice, bob} { // nothing is watched yet
		if err := lay(s); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	expelled, over := make(chan dockerexec.Fingerprint, 10), make(chan error, 1)
	go func() { over <- p.Watch(ctx, func(f dockerexec.Fingerprint) { expelled <- f }) }()

	unseen, seen := alice, bob
	switch first := <-expelled; first {
	case alice.Fingerprint():
	case bob.Fingerprint():
		unseen, seen = bob, alice
	default:
		t.Fatalf("%s was expelled", first)
	}
	if err := lay(carol); !cerrdefs.IsUnavailable(err) {
		t.Errorf("one more: %v", err)
	}
	// What the other's mask is on appears, and cannot be watched.
	if err := os.Mkdir(filepath.Join(users, seen.User, "home", ".ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	if next := <-expelled; next != seen.Fingerprint() {
		t.Errorf("%s was expelled", next)
	}
	p.Release(unseen)
	p.Release(seen)
	if err := lay(carol); err != nil {
		t.Errorf("once there is room: %v", err)
	}
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
	if len(expelled) > 0 {
		t.Errorf("%s was expelled, too", <-expelled)
	}
}

// Whoever removes what a mask is mounted on, alone or with what it is in, ends the container: the kernel takes the
// mask away with it.
func TestAMountPointIsRemoved(t *testing.T) {
	for _, removed := range []string{"project/.env", "project"} {
		users := t.TempDir()
		home, alice := filepath.Join(users, "alice", "home"), deepMask(t, users, "project/.env")
		alice.UID, alice.GID = testUID, testGID
		p := NewPreparer(users, zerolog.Nop())
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		p.begin(fd)
		if err := os.Chown(home, testUID, testGID); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Prepare(alice); err != nil {
			t.Fatal(err)
		}
		root, err := hostfs.Open(hostfs.Config{Dir: home, UID: testUID, GID: testGID, Walks: hostfs.NewWalks(), User: "alice"})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(root.Remove(removed, true), root.Close()); err != nil {
			t.Fatal(err)
		}
		n, err := unix.Read(fd, p.watches.load.buffer)
		if err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		if gone := p.handle(p.watches.load.buffer[:n]); !slices.Contains(gone, alice.Fingerprint()) {
			t.Errorf("%s is gone, and the container stays: %v", removed, gone)
		}
		p.mu.Unlock()
	}
}

// A tenant who leads a name of its own to another's home takes nothing from the watch over that.
func TestAnothersWatchStays(t *testing.T) {
	users := t.TempDir()
	p := NewPreparer(users, zerolog.Nop())
	alice, bob := masked(t, users, "alice"), masked(t, users, "bob")
	bob.Masks = []dockerexec.Mask{{Target: "/home/p/home/x"}}
	ctx, cancel := context.WithCancel(t.Context())
	expelled, over := make(chan dockerexec.Fingerprint, 100), make(chan error, 1)
	for _, s := range []dockerexec.Spec{alice, bob} {
		if _, err := p.Prepare(s); err != nil {
			t.Fatal(err)
		}
	}
	go func() { over <- p.Watch(ctx, func(f dockerexec.Fingerprint) { expelled <- f }) }()
	defer func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}()
	went := map[dockerexec.Fingerprint]bool{}
	next := func(want dockerexec.Spec, change func() error) {
		t.Helper()
		for tries := 0; ; tries++ { // it may not watch yet
			if err := change(); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-expelled:
				if got == want.Fingerprint() {
					went[got] = true
					return
				}
				if !went[got] { // it may be told of again
					t.Fatalf("%s was expelled", got)
				}
			case <-time.After(100 * time.Millisecond):
				if tries == 600 {
					t.Fatalf("%s goes on, with what it must not see", want.User)
				}
			}
		}
	}
	name := filepath.Join(users, "bob", "home", "p")
	next(bob, func() error {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return os.Symlink("../../alice", name)
	})
	secret := filepath.Join(users, "alice", "home", ".ssh")
	next(alice, func() error {
		if err := os.RemoveAll(secret); err != nil {
			return err
		}
		return errors.Join(os.Mkdir(secret, 0o755), os.WriteFile(filepath.Join(secret, "id"), nil, 0o600))
	})
	p.Release(bob)
	for len(expelled) > 0 {
		<-expelled
	}
	next(alice, func() error { return errors.Join(os.RemoveAll(secret), os.Mkdir(secret, 0o755)) })
	p.Release(alice)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.watches.dirs)+len(p.watches.held) > 0 {
		t.Errorf("watched for nobody: %v, %v", p.watches.dirs, p.watches.held)
	}
}
