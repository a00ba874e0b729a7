package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
)

// deepMask is a Spec with a mask that needs a mount point three directories below the home.
func deepMask(t *testing.T, users, name string) dockerexec.Spec {
	t.Helper()
	spec := masked(t, users, "alice")
	spec.Masks = []dockerexec.Mask{{Target: "/home/" + name, Place: filepath.Join(users, "alice", "home", name)}}
	return spec
}

// Whatever happens to mount points on the host, nothing is remembered of them once no container needs them.
func TestNoMountPointIsRememberedLonger(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(home string) error
		left   []string
	}{
		{"nothing happens", func(string) error { return nil }, nil},
		{"a directory above is renamed", func(home string) error {
			return os.Rename(filepath.Join(home, "a"), filepath.Join(home, "z"))
		}, []string{"z/b/c/.x"}},
		{"a file is put beside", func(home string) error {
			return os.WriteFile(filepath.Join(home, "a/b/c/file"), nil, 0o600)
		}, []string{"a/b/c/file"}},
		{"a link takes the place of a directory", func(home string) error {
			return errors.Join(os.RemoveAll(filepath.Join(home, "a/b")), os.Symlink("/tmp", filepath.Join(home, "a/b")))
		}, []string{"a/b"}},
		{"the home goes", func(home string) error { return os.RemoveAll(home) }, nil},
	} {
		users := t.TempDir()
		p := NewPreparer(users, zerolog.Nop())
		home, spec := filepath.Join(users, "alice", "home"), deepMask(t, users, "a/b/c/.x")
		if _, err := p.Prepare(spec); err != nil {
			t.Fatal(err)
		}
		if err := c.change(home); err != nil {
			t.Fatal(err)
		}
		p.Release(spec)
		if len(p.made)+len(p.needed) != 0 {
			t.Errorf("%s: %v are made, and %v needed", c.what, p.made, p.needed)
		}
		for _, name := range c.left {
			if _, err := os.Lstat(filepath.Join(home, name)); err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
		}
		if left, err := os.ReadDir(home); len(left) != min(len(c.left), 1) && err == nil {
			t.Errorf("%s: left %v", c.what, left)
		}
	}
}

// A home that another host may use by now is left as it is. Root's mount points go with the next container there that needs them.
func TestForget(t *testing.T) {
	users := t.TempDir()
	here, elsewhere := NewPreparer(users, zerolog.Nop()), NewPreparer(users, zerolog.Nop())
	home, spec := filepath.Join(users, "alice", "home"), deepMask(t, users, "a/.x")
	if _, err := here.Prepare(spec); err != nil {
		t.Fatal(err)
	}
	if _, err := elsewhere.Prepare(spec); err != nil {
		t.Fatal(err)
	}
	here.Forget(spec)
	if len(here.made)+len(here.needed)+len(here.mounted) != 0 {
		t.Errorf("%v are made, %v needed, %v mounted", here.made, here.needed, here.mounted)
	}
	if _, err := os.Lstat(filepath.Join(home, "a/.x")); err != nil {
		t.Error(err)
	}
	elsewhere.Release(spec)
	if left, err := os.ReadDir(filepath.Join(home, "a")); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// What was put in the place of a file that stands in, when that was to be removed, is there afterwards.
func TestWhatReplacesAStandInStays(t *testing.T) {
	dir := t.TempDir()
	parent, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(parent)
	if err := errors.Join(os.WriteFile(dir+"/.netrc", []byte("password"), 0o444), os.WriteFile(dir+"/.pgpass", nil, 0o444), os.Mkdir(dir+"/.boto", 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, leaf := range []string{".netrc", ".pgpass", ".boto", "none"} {
		removeFile(parent, leaf)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	if text, _ := os.ReadFile(dir + "/.netrc"); err != nil || string(text) != "password" || !slices.Equal(left, []string{".boto", ".netrc"}) {
		t.Errorf("left %q, with %q: %v", left, text, err)
	}
}

// What several containers need is removed with the last of them.
func TestSharedMountPoints(t *testing.T) {
	users := t.TempDir()
	p := NewPreparer(users, zerolog.Nop())
	home, deep, near := filepath.Join(users, "alice", "home"), deepMask(t, users, "a/b/c/.x"), deepMask(t, users, "a/.y")
	for _, spec := range []dockerexec.Spec{deep, near, near} {
		if _, err := p.Prepare(spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		spec       dockerexec.Spec
		left, gone string
	}{{near, "a/.y", "-"}, {deep, "a/.y", "a/b"}, {near, ".", "a"}} {
		p.Release(c.spec)
		if _, err := os.Lstat(filepath.Join(home, c.left)); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(home, c.gone)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", c.gone, err)
		}
	}
	if len(p.made)+len(p.needed) != 0 {
		t.Errorf("%v are made, and %v needed", p.made, p.needed)
	}
}
