package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func homeOf(t *testing.T, users, name string, uid int) {
	t.Helper()
	home := filepath.Join(users, name, "home")
	if err := errors.Join(os.MkdirAll(home, 0o755), os.Lchown(home, uid, uid)); err != nil {
		t.Fatal(err)
	}
}

// Each home gets an id that no other has, those of before included, and one that is gone comes last.
func TestEachHomeHasAnOwner(t *testing.T) {
	users := t.TempDir()
	homeOf(t, users, "old", 1000)
	homeOf(t, users, "first", 500_001)
	if err := errors.Join(os.WriteFile(filepath.Join(users, "file"), nil, 0o600), os.MkdirAll(filepath.Join(users, "none"), 0o755), os.Symlink("nowhere", filepath.Join(users, "link"))); err != nil {
		t.Fatal(err)
	}
	var a allotted
	range5 := Owners{UID: 500_000, Last: 500_004}
	want := func(name string, o Owners, id uint32) {
		t.Helper()
		uid, gid, err := a.next(o, users, nil)
		if err != nil || uid != id || gid != id {
			t.Fatalf("%s: %d:%d, %v, want %d", name, uid, gid, err, id)
		}
		homeOf(t, users, name, int(uid))
	}
	want("a", range5, 500_002)
	want("b", range5, 500_003)
	if err := os.RemoveAll(filepath.Join(users, "b")); err != nil {
		t.Fatal(err)
	}
	want("c", range5, 500_004)
	want("d", range5, 500_000)
	want("e", range5, 500_003) // the only one left, although it was b's
	if _, _, err := a.next(range5, users, nil); !errors.Is(err, errNoOwnerLeft) || !strings.Contains(err.Error(), "500000-500004") {
		t.Errorf("%v", err)
	}
	if uid, gid, err := a.next(Owners{UID: 7, GID: 8}, users, nil); err != nil || uid != 7 || gid != 8 {
		t.Errorf("%d:%d, %v", uid, gid, err)
	}
	a = allotted{} // a service that was started again
	want("f", Owners{UID: 500_000, Last: 500_010}, 500_005)
}

// Calls that come at once for users who are new get homes with owners of their own, and the last one is told
// that there is none left.
func TestHomesThatAreMadeAtOnce(t *testing.T) {
	const n = 20
	p := newPlanner(t)
	p.Use(Config{UsersDir: p.UsersDir(), HomeOwners: Owners{UID: 500_000, Last: 500_000 + n - 1}})
	var work sync.WaitGroup
	for i := range n {
		for range 2 {
			work.Go(func() {
				if h, err := p.OpenHome(t.Context(), fmt.Sprintf("u%d", i)); err != nil {
					t.Error(err)
				} else {
					h.Close()
				}
			})
		}
	}
	work.Wait()
	taken, err := homeOwners(p.UsersDir())
	if err != nil || len(taken) != n {
		t.Errorf("%d owners for %d homes, %v", len(taken), n, err)
	}
	if _, err := p.OpenHome(t.Context(), "late"); err == nil || !strings.Contains(err.Error(), "homeOwner") {
		t.Errorf("%v", err)
	}
	checkNoLeftovers(t, p.UserDir("late"))
}
