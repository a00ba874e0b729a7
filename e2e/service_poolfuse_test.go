package e2e

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// overFUSE has the lab's homes lie on a filesystem of its own, which is a program's, and returns where they really are.
func (l *lab) overFUSE(t *testing.T) (behind string) {
	t.Helper()
	l.stop(syscall.SIGTERM)
	behind = l.path("behind")
	if err := errors.Join(os.RemoveAll(l.path("users")), os.Mkdir(behind, 0o755)); err != nil {
		t.Fatal(err)
	}
	l.place.show(t, buildLoopback(t, l.dir), behind, l.path("users"))
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	return behind
}

// Homes that lie on a filesystem of a program's, as with a storage in the network, are bound, frozen and thawed as others are.
func TestPoolOnAFilesystemOfAProgram(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		behind := l.overFUSE(t)
		in := func(user, command string) string { return l.run(t, user, types.Exec{Command: command}).Stdout }
		if out := l.firstCall(t, "before", types.Exec{Command: "true"}); !out.Cold {
			t.Error("there was a pool before anybody came")
		}
		l.ready(t, 1)
		without, plain := homeOf(t, l.home("before"))
		for _, user := range []string{"first", "second"} {
			l.ready(t, 1)
			_, waited := homeOf(t, l.poolDirs(t)[0])
			begun := time.Now()
			out := l.firstCall(t, user, types.Exec{Command: "ls -A; echo mine > own; stat -c '%a %u' ."})
			if out.Cold || len(out.Stdout) == 0 {
				t.Errorf("%s: cold %v, %q", user, out.Cold, out.Stdout)
			}
			with, st := homeOf(t, l.home(user))
			in(user, "rm own")
			if bare, _ := homeOf(t, l.home(user)); bare != without || with == without {
				t.Errorf("a home of the pool: %s\nany other: %s", bare, without)
			}
			if st.Ino != waited.Ino || st.Mode != plain.Mode || st.Uid != waited.Uid || st.Gid != waited.Gid || st.Uid != st.Gid || st.Dev != plain.Dev {
				t.Errorf("%+v, of the pool %+v, without it %+v", st, waited, plain)
			}
			if age := begun.Sub(time.Unix(st.Mtim.Sec, st.Mtim.Nsec)); age > 0 {
				t.Errorf("its time is %v before the call", age)
			}
			if at := time.Unix(st.Atim.Sec, st.Atim.Nsec); at.After(time.Now()) {
				t.Errorf("its access time is %v", at)
			}
		}
		for range 3 {
			in("first", "echo inside > /home/inside")
			id := l.frozen(t, "first")
			putFile(t, behind+"/first/home/outside", "outside")
			if got := holds(behind + "/first/home/inside"); got != "inside\n" {
				t.Errorf("behind the filesystem: %q", got)
			}
			l.warmly(t, "first")
			eventually(t, "what was written behind the filesystem is seen inside", func() bool { return in("first", "cat /home/outside 2>/dev/null; true") == "outside" })
			in("first", "rm -f /home/outside /home/inside")
			if l.containerOf(t, "first").ID != id {
				t.Error("it is another container")
			}
		}
		if off := l.metric(t, "sandboxd_pool_off"); off != 0 {
			t.Errorf("the pool is off: %v", off)
		}
	}, "SANDBOXD_POOL_SIZE=1", freezesSoon)
}
