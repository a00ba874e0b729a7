package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
)

// A home of the pool becomes a user's as if it had been made then, once, and never in the place of another.
func TestGiveHome(t *testing.T) {
	p := newPlanner(t)
	pooled := func(id string) string {
		t.Helper()
		h, err := p.OpenHome(t.Context(), dockerexec.PoolUser(id))
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
		return dockerexec.PoolUser(id)
	}
	from := pooled("a")
	was, err := os.Stat(filepath.Join(p.UserDir(from), "home"))
	if err != nil {
		t.Fatal(err)
	}
	above := filepath.Dir(p.UserDir(from))
	for _, dir := range []string{filepath.Dir(above), above} {
		if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	checkNoLeftovers(t, above, "user")
	if has, err := p.HasFolder("bob"); has || err != nil {
		t.Errorf("bob has a home already, or %v", err)
	}
	begun := time.Now().Add(-time.Second)
	if err := p.GiveHome(from, "bob"); err != nil {
		t.Fatal(err)
	}
	is, err := os.Stat(filepath.Join(p.UserDir("bob"), "home"))
	if err != nil || !os.SameFile(was, is) || is.Mode() != os.ModeDir|0o750 || is.Sys().(*syscall.Stat_t).Uid != testUID || is.ModTime().Before(begun) {
		t.Errorf("%+v, %v", is, err)
	}
	if has, err := p.HasFolder("bob"); !has || err != nil {
		t.Errorf("bob has no folder, or %v", err)
	}
	if info, err := os.Stat(p.UserDir("bob")); err != nil || info.Mode() != os.ModeDir|0o755 {
		t.Errorf("bob's folder: %v, %v", info, err)
	}
	if err := p.GiveHome(from, "carol"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("once more: %v", err)
	}
	if err := p.GiveHome(pooled("b"), "bob"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second one: %v", err)
	}
	if err := os.Symlink(p.UserDir("bob"), p.UserDir("eve")); err != nil {
		t.Fatal(err)
	}
	if err := p.GiveHome(pooled("c"), "eve"); err == nil {
		t.Error("it went behind a link")
	}
	checkNoLeftovers(t, p.UserDir("bob"), "home")
}

// What somebody has made where a user's folder is stays as it is, and so does what waits.
func TestGiveHomeInTheWay(t *testing.T) {
	for what, make := range map[string]func(dir string) error{
		"an empty folder": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 77, 77)) },
		"a folder with a file": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "note"), nil, 0o644))
		},
		"a file":        func(dir string) error { return os.WriteFile(dir, nil, 0o644) },
		"a link":        func(dir string) error { return os.Symlink(t.TempDir(), dir) },
		"a broken link": func(dir string) error { return os.Symlink("nowhere", dir) },
	} {
		p := newPlanner(t)
		from := dockerexec.PoolUser("x")
		h, err := p.OpenHome(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
		dir := p.UserDir("bob")
		if err := make(dir); err != nil {
			t.Fatal(err)
		}
		was, err := os.Lstat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.GiveHome(from, "bob"); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", what, err)
		}
		if err := renamePooled(t, p, from, "bob"); what != "an empty folder" && !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s that came late: %v", what, err)
		} else if is, err := os.Lstat(dir); what != "an empty folder" && (err != nil || !os.SameFile(was, is)) {
			t.Errorf("%s is another one: %v", what, err)
		}
	}
}

// renamePooled is what GiveHome does after it has looked.
func renamePooled(t *testing.T, p *Planner, pooled, user string) error {
	t.Helper()
	dir, err := os.Open(p.UsersDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	return renameDir(int(dir.Fd()), pooled, int(dir.Fd()), user)
}

// Whoever comes first, a call that makes a home or one that is given a home, there is one home, whole.
func TestGiveHomeBesideMakingOne(t *testing.T) {
	p := newPlanner(t)
	var given int
	for i := range 100 {
		from, user := dockerexec.PoolUser(fmt.Sprint(i)), fmt.Sprint("user-", i)
		h, err := p.OpenHome(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
		var calls sync.WaitGroup
		var homes [4]dockerexec.FileID
		for n := range homes {
			if n == i%4 {
				calls.Go(func() {
					if err := p.GiveHome(from, user); err == nil {
						given++
					} else if !errors.Is(err, fs.ErrExist) {
						t.Error(err)
					}
				})
			}
			calls.Go(func() {
				h, err := p.OpenHome(t.Context(), user)
				if err != nil {
					t.Error(err)
					return
				}
				defer h.Close()
				homes[n] = h.id
			})
		}
		calls.Wait()
		if homes != [4]dockerexec.FileID{homes[0], homes[0], homes[0], homes[0]} {
			t.Errorf("%s has had several homes: %v", user, homes)
		}
		checkNoLeftovers(t, p.UserDir(user), "home")
	}
	t.Logf("%d of 100 were given", given)
}

// A filesystem that lets a directory replace what holds something is not used for a pool; this one does not, and it is asked.
func TestCheckReplacing(t *testing.T) {
	users, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	if err := errors.Join(users.MkdirAll(".pool/x/user/home", 0o700), checkReplacing(users, ".pool/x/user")); err != nil {
		t.Error(err)
	}
	checkNoLeftovers(t, filepath.Join(users.Name(), ".pool/x"), "user")
	// One that replaces it is like one where it holds nothing.
	if err := errors.Join(users.Remove(".pool/x/user/home"), checkReplacing(users, ".pool/x/user")); !errors.Is(err, dockerexec.ErrHomesStay) {
		t.Error(err)
	}
}

// A folder of the pool inherits the group of a usersDir that passes it on, which gives nobody a say in it.
func TestPoolDirInheritsAGroup(t *testing.T) {
	p := newPlanner(t)
	if err := errors.Join(os.Mkdir(p.UsersDir(), 0o755), os.Chmod(p.UsersDir(), 0o755|os.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		h, err := p.OpenHome(t.Context(), dockerexec.PoolUser(id))
		if err != nil {
			t.Fatal(err)
		}
		h.Close()
		if err := p.GiveHome(dockerexec.PoolUser(id), id); err != nil {
			t.Error(err)
		}
	}
}

// A folder of the pool that others could have a say in is refused.
func TestPoolDirOfOthers(t *testing.T) {
	for what, make := range map[string]func(dir string) error{
		"a link":      func(dir string) error { return os.Symlink(t.TempDir(), dir) },
		"a file":      func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"open to all": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755)) },
		"a tenant's":  func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, testUID, testGID)) },
	} {
		p := newPlanner(t)
		dir := PoolDir(p.UsersDir())
		if err := errors.Join(os.Mkdir(p.UsersDir(), 0o755), make(dir)); err != nil {
			t.Fatal(err)
		}
		if h, err := p.OpenHome(t.Context(), dockerexec.PoolUser("x")); err == nil {
			h.Close()
			t.Errorf("%s is taken", what)
		}
	}
}

// Homes of the pool have owners of their own, of which it never takes the last quarter.
func TestOwnersOfThePool(t *testing.T) {
	p := newPlanner(t)
	cfg := p.cfg().Config
	cfg.HomeOwners = Owners{UID: 500_000, Last: 500_007}
	p.Use(cfg)
	seen := map[uint32]bool{}
	open := func(user string) error {
		h, err := p.OpenHome(t.Context(), user)
		if err != nil {
			return err
		}
		h.Close()
		if seen[h.uid] {
			t.Errorf("%s has an owner that another home has", user)
		}
		seen[h.uid] = true
		return nil
	}
	for i := range 5 {
		if err := open(dockerexec.PoolUser(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(open("alice"), open("bob")); err != nil {
		t.Fatal(err)
	}
	if err := open(dockerexec.PoolUser("late")); !errors.Is(err, errNoOwnerLeft) {
		t.Errorf("the pool has one of the last quarter: %v", err)
	}
	if err := open("eve"); err != nil || len(seen) != 8 {
		t.Errorf("%d, %v", len(seen), err)
	}
	for last, want := range map[uint32]uint32{0: 0, 8: 7, 9: 8, 20: 17} { // of a range that begins at 7
		got, err := Owners{UID: 7, Last: last}.of(dockerexec.PoolUser("x"))
		if err != nil || got.Last != want {
			t.Errorf("to %d: %+v, %v", last, got, err)
		}
	}
	if _, err := (Owners{UID: 7, Last: 7}).of(dockerexec.PoolUser("x")); !errors.Is(err, errNoOwnerLeft) {
		t.Errorf("of one: %v", err)
	}
	if _, err := NewPlanner(cfg, zerolog.Nop()).OpenHome(t.Context(), "late"); !errors.Is(err, errNoOwnerLeft) {
		t.Errorf("%v", err)
	}
}

// What is made for a container of the pool is watched for its user, and goes with that user's container.
func TestRebind(t *testing.T) {
	users := t.TempDir()
	planner := NewPlanner(Config{UsersDir: users}, zerolog.Nop())
	p := NewPreparer(users, zerolog.Nop())
	ctx, cancel := context.WithCancel(t.Context())
	expelled, over := make(chan dockerexec.Fingerprint, 100), make(chan error, 1)
	go func() { over <- p.Watch(ctx, func(f dockerexec.Fingerprint) { expelled <- f }) }()
	spec := func(user string) dockerexec.Spec {
		home := filepath.Join(users, user, "home")
		return dockerexec.Spec{
			User: user, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()),
			Masks: []dockerexec.Mask{{Target: "/home/.ssh", Place: home + "/.ssh"}, {Target: "/home/.config/gh", Place: home + "/.config/gh"}, {Target: "/home/.netrc"}},
			Pins:  []dockerexec.Pin{{Place: home + "/.config", Target: "/home/.config"}},
		}
	}
	from, to := spec(dockerexec.PoolUser("x")), spec("alice")
	if err := os.MkdirAll(filepath.Join(users, from.User, "home"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Prepare(from); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(planner.GiveHome(from.User, to.User), p.Rebind(from, to)); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(users, "alice", "home")
	for watched := false; !watched; { // it may not watch yet
		if err := os.WriteFile(filepath.Join(home, ".netrc"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		select {
		case who := <-expelled:
			if watched = true; who != to.Fingerprint() {
				t.Errorf("expelled %s", who)
			}
		case <-time.After(time.Millisecond):
		}
		_ = os.Remove(filepath.Join(home, ".netrc"))
	}
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
	p.Release(to)
	if left, err := os.ReadDir(home); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if len(p.needed)+len(p.made)+len(p.mounted) != 0 {
		t.Errorf("%v %v %v", p.needed, p.made, p.mounted)
	}
}
