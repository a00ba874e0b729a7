package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// The owner of a home that is made in these tests.
const testUID, testGID = 4321, 1234

func newPlanner(t *testing.T) *Planner {
	t.Helper()
	return NewPlanner(Config{UsersDir: filepath.Join(t.TempDir(), "users"), HomeOwners: Owners{UID: testUID, GID: testGID}}, zerolog.Nop())
}

// A home's owner can be set by root alone, so these tests run as root, as the service does.

func TestHomeIsMadeForItsOwner(t *testing.T) {
	p := newPlanner(t)
	for range 2 { // the second time it is there
		h, err := p.OpenHome(t.Context(), "bob")
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(p.UsersDir(), "bob", "home"); h.dir != want || h.uid != testUID || h.gid != testGID {
			t.Errorf("%+v, want %s", h, want)
		}
	}
	info, err := os.Lstat(filepath.Join(p.UsersDir(), "bob", "home"))
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if owner.Uid != testUID || owner.Gid != testGID || info.Mode() != os.ModeDir|0o750 {
		t.Errorf("owner %d:%d, mode %v", owner.Uid, owner.Gid, info.Mode())
	}
	checkNoLeftovers(t, filepath.Join(p.UsersDir(), "bob"), "home")
}

func checkNoLeftovers(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("in the user's folder: %q, want %q", names, want)
	}
}

func TestHomeThatIsThereKeepsItsOwner(t *testing.T) {
	p := newPlanner(t)
	home := filepath.Join(p.UsersDir(), "bob", "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, 77, 88); err != nil {
		t.Fatal(err)
	}
	if h, err := p.OpenHome(t.Context(), "bob"); err != nil || h.uid != 77 || h.gid != 88 {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestHomesThatAreRefused puts something else where a home belongs.
func TestHomesThatAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name, message string
		place         func(users, elsewhere string) error // elsewhere is a good home outside of users
	}{
		{"belongs to root", "belongs to root", func(users, _ string) error { return os.MkdirAll(users+"/bob/home", 0o755) }},
		{"is a file", "not a directory", func(users, _ string) error {
			return errors.Join(os.MkdirAll(users+"/bob", 0o755), os.WriteFile(users+"/bob/home", nil, 0o644), os.Chown(users+"/bob/home", 77, 77))
		}},
		{"is a link to another home", "not a directory", func(users, elsewhere string) error {
			return errors.Join(os.MkdirAll(users+"/bob", 0o755), os.Symlink(elsewhere, users+"/bob/home"))
		}},
		{"is a link to a directory beside it", "not a directory", func(users, _ string) error {
			return errors.Join(os.MkdirAll(users+"/bob/real", 0o755), os.Chown(users+"/bob/real", 77, 77), os.Symlink("real", users+"/bob/home"))
		}},
		{"is a broken link", "not a directory", func(users, _ string) error {
			return errors.Join(os.MkdirAll(users+"/bob", 0o755), os.Symlink("nowhere", users+"/bob/home"))
		}},
		{"is below a link that leads out", "behind a symbolic link", func(users, elsewhere string) error {
			return os.Symlink(filepath.Dir(elsewhere), users+"/bob")
		}},
		{"would be below a link that leads out", "behind a symbolic link", func(users, elsewhere string) error {
			return os.Symlink(filepath.Dir(filepath.Dir(elsewhere)), users+"/bob")
		}},
		{"would be below a file", "not a directory", func(users, _ string) error { return os.WriteFile(users+"/bob", nil, 0o644) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPlanner(t)
			outside := filepath.Join(t.TempDir(), "carol")
			elsewhere := filepath.Join(outside, "home")
			if err := errors.Join(os.MkdirAll(p.UsersDir(), 0o755), os.MkdirAll(elsewhere, 0o755), os.Chown(elsewhere, 77, 77)); err != nil {
				t.Fatal(err)
			}
			if err := tt.place(p.UsersDir(), elsewhere); err != nil {
				t.Fatal(err)
			}
			_, err := p.OpenHome(t.Context(), "bob")
			if err == nil || !strings.Contains(err.Error(), tt.message) || strings.Contains(err.Error(), filepath.Dir(p.UsersDir())) {
				t.Errorf("%v, want %s and no host path", err, tt.message)
			}
			checkNoLeftovers(t, outside, "home")
		})
	}
}

func TestFolderOfHomesThatCannotBe(t *testing.T) {
	p := newPlanner(t)
	if err := os.WriteFile(p.UsersDir(), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := p.OpenHome(t.Context(), "bob")
	if err == nil || strings.Contains(err.Error(), p.UsersDir()) {
		t.Error(err)
	}
}

// TestHomeIsMadeOnce opens a new user's home from many calls at once: all must get the same
// directory, since the first may have mounted it by the time that the last one looks.
func TestHomeIsMadeOnce(t *testing.T) {
	p := newPlanner(t)
	inodes := make([]uint64, 64)
	var calls sync.WaitGroup
	begin := make(chan struct{})
	for i := range inodes {
		calls.Go(func() {
			<-begin
			h, err := p.OpenHome(t.Context(), "bob")
			if err != nil {
				t.Error(err)
				return
			}
			var stat syscall.Stat_t
			if err := syscall.Lstat(h.dir, &stat); err != nil {
				t.Error(err)
			}
			inodes[i] = stat.Ino
		})
	}
	close(begin)
	calls.Wait()
	for _, inode := range inodes {
		if inode != inodes[0] {
			t.Fatalf("different directories: inodes %v", inodes)
		}
	}
	checkNoLeftovers(t, filepath.Join(p.UsersDir(), "bob"), "home")
}

// A home of the pool stays without files: only then can it be removed.
func TestCachesOfThePool(t *testing.T) {
	for user, want := range map[string]int{"alice": 2, dockerexec.PoolUser("a-b"): 1} {
		p := NewPlanner(Config{UsersDir: t.TempDir(), HomeOwners: Owners{UID: 1000, GID: 1000}}, zerolog.Nop())
		path := filepath.Join(p.UsersDir(), user, "home")
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chown(path, 1000, 1000)); err != nil {
			t.Fatal(err)
		}
		h, err := p.OpenHome(t.Context(), user)
		if err != nil {
			t.Fatal(err)
		}
		host, err := pathmap.ParseHost(path)
		if err != nil {
			t.Fatal(err)
		}
		if !h.MakeCaches(pathmap.Mount{Host: host, Container: policy.Home}, ".", false) {
			t.Errorf("%s: there are none", user)
		}
		if entries, err := os.ReadDir(filepath.Join(path, ".cache")); err != nil || len(entries) != want {
			t.Errorf("%s: %v, %v", user, entries, err)
		}
		h.Close()
	}
}
