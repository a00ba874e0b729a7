package hostfs_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/hostfs"
)

// owner is nobody that the machine knows, so what it may do comes of ownership alone.
const owner = 54321

// lab is a root of the owner's and, beside it, a directory outside, which the owner could use as well:
// what keeps a caller out of it is hostfs and not a permission.
type lab struct {
	t             testing.TB
	dir, outside  string
	root          *hostfs.Root
	uid, gid      int
	serviceIsRoot bool
}

func newLab(t testing.TB, denied ...string) *lab {
	t.Helper()
	return newLabIn(t, openTempDir(t), denied...)
}

// openTempDir is a temporary directory that the owner can reach, from the root and by any link out of it.
func openTempDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)))
	return dir
}

func newLabIn(t testing.TB, base string, denied ...string) *lab {
	t.Helper()
	before := descriptors(t)
	l := &lab{t: t, dir: filepath.Join(base, "root"), outside: filepath.Join(base, "outside")}
	l.uid, l.gid, l.serviceIsRoot = os.Getuid(), os.Getgid(), os.Getuid() == 0
	if l.serviceIsRoot {
		l.uid, l.gid = owner, owner+1
	}
	for _, dir := range []string{l.dir, l.outside} {
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.Chown(dir, l.uid, l.gid))
	}
	root, err := hostfs.Open(hostfs.Config{Dir: l.dir, UID: uint32(l.uid), GID: uint32(l.gid), Denied: denied, Walks: hostfs.NewWalks(), User: "lab"})
	must(t, err)
	l.root = root
	t.Cleanup(func() {
		must(t, root.Close())
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors were open before and %d are after", before, after)
		}
	})
	return l
}

// descriptors counts what is open, so that every test of a lab also finds what was left open.
func descriptors(t testing.TB) int {
	t.Helper()
	// The first pipe makes the runtime open what it polls with, and keep it.
	r, w, err := os.Pipe()
	must(t, errors.Join(err, r.Close(), w.Close()))
	open, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(open)
}

func (l *lab) needsRoot() {
	l.t.Helper()
	if !l.serviceIsRoot {
		l.t.Fatal("this test needs root")
	}
}

func (l *lab) at(name string) string { return filepath.Join(l.dir, name) }

// file makes a file of the owner's, and dir a directory, as the owner would.
func (l *lab) file(name, content string) {
	l.t.Helper()
	l.mkdir(filepath.Dir(name))
	must(l.t, os.WriteFile(l.at(name), []byte(content), 0o644))
	must(l.t, os.Chown(l.at(name), l.uid, l.gid))
}

func (l *lab) mkdir(name string) {
	l.t.Helper()
	for dir := name; dir != "."; dir = filepath.Dir(dir) {
		must(l.t, os.MkdirAll(l.at(dir), 0o755))
		must(l.t, os.Chown(l.at(dir), l.uid, l.gid))
	}
}

func (l *lab) symlink(target, name string) {
	l.t.Helper()
	must(l.t, os.Symlink(target, l.at(name)))
}

func (l *lab) read(name string) (string, error) { return read(l.root, name) }

func read(root *hostfs.Root, name string) (string, error) {
	f, _, err := root.OpenFile(name)
	if err != nil {
		return "", err
	}
	content, err := io.ReadAll(f)
	return string(content), errors.Join(err, f.Close())
}

func (l *lab) write(name string, how hostfs.CreateMode, content string) error {
	return write(l.root, name, how, content)
}

func write(root *hostfs.Root, name string, how hostfs.CreateMode, content string) error {
	w, err := root.Create(name, how, 0o644)
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := io.WriteString(w, content); err != nil {
		return err
	}
	_, err = w.Commit()
	return err
}

// holds checks a file past hostfs.
func (l *lab) holds(name, want string) {
	l.t.Helper()
	got, err := os.ReadFile(l.at(name))
	if err != nil || string(got) != want {
		l.t.Errorf("%s holds %.80q, %v, want %.80q", name, got, err, want)
	}
}

// has checks the names in a directory, so that no temporary file is left.
func (l *lab) has(dir string, want ...string) {
	l.t.Helper()
	entries, err := os.ReadDir(dir)
	must(l.t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		l.t.Errorf("the directory has %q, want %q", got, want)
	}
}

// refused checks class and text, and that the text does not tell where the root is.
func (l *lab) refused(err, class error, says string) {
	l.t.Helper()
	if !errors.Is(err, class) || !strings.Contains(err.Error(), says) {
		l.t.Errorf("error is %v, want one of class %q that says %q", err, class, says)
	}
	if err != nil && strings.Contains(err.Error(), l.dir) {
		l.t.Errorf("the error tells where the root is: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name  string
		cfg   hostfs.Config
		class error
		says  string
	}{
		{"relative", hostfs.Config{Dir: "home"}, errdefs.ErrInvalidArgument, "not an absolute"},
		{"empty", hostfs.Config{}, errdefs.ErrInvalidArgument, "not an absolute"},
		{"unclean", hostfs.Config{Dir: "/tmp/"}, errdefs.ErrInvalidArgument, "clean"},
		{"denied name", hostfs.Config{Dir: "/", Denied: []string{"/etc"}}, errdefs.ErrInvalidArgument, "denied name"},
		{"all is denied", hostfs.Config{Dir: "/", Denied: []string{"."}}, errdefs.ErrInvalidArgument, "root directory itself"},
		{"missing", hostfs.Config{Dir: "/no/such/directory"}, errdefs.ErrNotFound, "does not exist"},
		{"file", hostfs.Config{Dir: "/etc/passwd"}, errdefs.ErrInvalidArgument, "not a directory"},
		{"nobody", hostfs.Config{Dir: "/", UID: ^uint32(0)}, errdefs.ErrInvalidArgument, "cannot own files"},
		{"walks without a bound", hostfs.Config{Dir: "/", User: "lab"}, errdefs.ErrInvalidArgument, "nothing bounds the walks"},
		{"walks without a bound", hostfs.Config{Dir: "/", Walks: &hostfs.Walks{}, User: "lab"}, errdefs.ErrInvalidArgument, "nothing bounds the walks"},
		{"walks of nobody", hostfs.Config{Dir: "/", Walks: hostfs.NewWalks()}, errdefs.ErrInvalidArgument, "nothing bounds the walks"},
	}
	for _, tt := range tests {
		if tt.cfg.Walks == nil && tt.cfg.User == "" {
			tt.cfg.Walks, tt.cfg.User = hostfs.NewWalks(), "lab"
		}
		if tt.cfg.UID == 0 {
			tt.cfg.UID, tt.cfg.GID = uint32(os.Getuid()), uint32(os.Getgid())
		}
		root, err := hostfs.Open(tt.cfg)
		if !errors.Is(err, tt.class) || !strings.Contains(err.Error(), tt.says) || root != nil {
			t.Errorf("%s: %v, want %q of class %q", tt.name, err, tt.says, tt.class)
		}
		if err != nil && strings.Contains(err.Error(), "/no/such") {
			t.Errorf("%s: the path leaks: %v", tt.name, err)
		}
	}
}

func TestClosedRoot(t *testing.T) {
	l := newLab(t)
	root, err := hostfs.Open(hostfs.Config{Dir: l.dir, UID: uint32(l.uid), GID: uint32(l.gid), Walks: hostfs.NewWalks(), User: "lab"})
	must(t, err)
	w, err := root.Create("f", hostfs.Replace, 0o644)
	must(t, err)
	must(t, root.Close())
	if _, err := w.Commit(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Commit after Close: %v", err)
	}
	l.has(l.dir)
	if _, err := root.Stat("."); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Stat after Close: %v", err)
	}
	if err := root.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
}

// TestIdentityComesBack also shows that the owner's permissions count, with a directory closed to it.
func TestIdentityComesBack(t *testing.T) {
	l := newLab(t)
	l.needsRoot()
	must(t, os.Mkdir(l.at("private"), 0o700))
	must(t, os.WriteFile(l.at("private/f"), nil, 0o644))
	must(t, os.WriteFile(l.at("unreadable"), nil, 0o600))
	_, err := l.read("private/f")
	l.refused(err, errdefs.ErrPermissionDenied, "does not permit this")
	_, err = l.read("unreadable")
	l.refused(err, errdefs.ErrPermissionDenied, `"unreadable" does not permit this`)
	l.refused(l.write("private/g", hostfs.Replace, "x"), errdefs.ErrPermissionDenied, "does not permit this")
	for range 100 {
		if uid, _ := unix.SetfsuidRetUid(-1); uid != 0 {
			t.Fatalf("fsuid stayed %d", uid)
		}
		_, err := os.ReadFile(l.at("unreadable"))
		must(t, err)
	}
}
