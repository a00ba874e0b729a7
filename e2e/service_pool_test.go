package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// firstCall is a new user's: PUT and a command.
func (l *lab) firstCall(t *testing.T, user string, e types.Exec) types.Output {
	t.Helper()
	l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{Network: slices.Contains(e.Permissions, "@network")}})
	return l.run(t, user, e)
}

// ready waits until so many containers wait for a user.
func (l *lab) ready(t *testing.T, n int) {
	t.Helper()
	l.readyAt(t, "", n)
}

// readyAt is ready for a host of a cluster, whose list has those of all hosts.
func (l *lab) readyAt(t *testing.T, node string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d containers of the pool are ready, and listed so", n), func() bool {
		list, err := l.client.AllContainers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		waiting := slices.DeleteFunc(list.Pooled, func(c types.PooledContainer) bool { return c.State != "pooled" || c.ID == "" || c.Node != node })
		return len(waiting) == n && l.metric(t, "sandboxd_pool_containers") == float64(n)
	})
}

// toldOfPool waits for the events to say that so many wait, and so many went to users or ended.
func (l *lab) toldOfPool(t *testing.T, waiting, gone int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	waits, left := map[string]bool{}, 0
	for e, err := range l.client.Events(ctx, client.EventQuery{Kinds: []types.ServiceKind{types.ServiceContainer}, Replay: true}) {
		switch c := e.Container; {
		case err != nil:
			t.Fatalf("%d wait and %d are gone: %v", len(waits), left, err)
		case c == nil || e.UserID != "":
		case c.State == "pooled":
			waits[c.Name] = true
		case c.State == "removed" && waits[c.Name]:
			left++
			delete(waits, c.Name)
		}
		if len(waits) == waiting && left == gone {
			return
		}
	}
}

// pooled are the containers that are in the pool or came from it.
func (l *lab) pooled(t *testing.T) []container.Summary {
	t.Helper()
	list, err := l.listContainers()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(c container.Summary) bool {
		return !strings.HasPrefix(c.Labels["run.daycare.sandbox.user"], ".pool/")
	})
}

func (l *lab) poolDirs(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob(l.path("users/.pool/*/user/home"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// homeOf is what there is to say about a home but its times and inode, which it returns beside.
func homeOf(t *testing.T, name string) (what string, st *syscall.Stat_t) {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	_ = filepath.WalkDir(name, func(path string, d os.DirEntry, err error) error {
		at, statErr := os.Lstat(path)
		if statErr == nil {
			names = append(names, fmt.Sprint(strings.TrimPrefix(path, name), " ", at.Mode(), " ", at.Sys().(*syscall.Stat_t).Uid == info.Sys().(*syscall.Stat_t).Uid))
		}
		return err
	})
	return fmt.Sprint(names), info.Sys().(*syscall.Stat_t)
}

// A new user gets a container that waited, with a home like any other's; nobody else ever has it.
func TestPool(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		if out := l.firstCall(t, "before", types.Exec{Command: "true"}); !out.Cold {
			t.Error("there was a pool before anybody came")
		}
		l.ready(t, 2)
		without, _ := homeOf(t, l.home("before"))
		seen := map[string]string{}
		for i := range 4 {
			l.ready(t, 2)
			user := fmt.Sprintf("new-%d", i)
			var inodes []uint64
			for _, dir := range l.poolDirs(t) {
				_, st := homeOf(t, dir)
				inodes = append(inodes, st.Ino)
			}
			begun := time.Now()
			out := l.firstCall(t, user, types.Exec{Command: "ls -A; cat /tmp/* 2>/dev/null; echo mine > own; echo mine > /tmp/own; mkdir .ssh 2>&1; ls .ssh 2>&1; touch .ssh/x 2>&1"})
			t.Logf("%s: %.1f ms", user, float64(time.Since(begun).Microseconds())/1e3)
			if out.Cold || strings.Contains(out.Stdout, "mine") {
				t.Errorf("%s: cold %v, %q", user, out.Cold, out.Stdout)
			}
			if _, err := os.Lstat(l.at(user, ".ssh/x")); !errors.Is(err, os.ErrNotExist) {
				t.Error("a mask does not hold")
			}
			if text, err := os.ReadFile(l.at(user, "own")); err != nil || string(text) != "mine\n" {
				t.Errorf("what was written is not in the home: %v", err)
			}
			if got := l.read(t, user, "/tmp/own"); got != "mine\n" {
				t.Errorf("/tmp: %q", got)
			}
			_, st := homeOf(t, l.home(user))
			if age := begun.Sub(time.Unix(st.Mtim.Sec, st.Mtim.Nsec)); age > 0 || !slices.Contains(inodes, st.Ino) {
				t.Errorf("its time is %v before the call, its inode %d of %v", age, st.Ino, inodes)
			}
			if again := l.run(t, user, types.Exec{Command: "rm own; cat /tmp/own"}); again.Cold || again.Stdout != "mine\n" {
				t.Errorf("the second call: cold %v, %q", again.Cold, again.Stdout)
			}
			// Another grant is another container, with the same /tmp.
			if other := l.run(t, user, types.Exec{Permissions: none, Command: "cat /tmp/own; touch x 2>/dev/null || echo ro"}); !other.Cold || other.Stdout != "mine\nro\n" {
				t.Errorf("with other grants: cold %v, %q", other.Cold, other.Stdout)
			}
			if with, _ := homeOf(t, l.home(user)); with != without {
				t.Errorf("a home of the pool: %s\nany other: %s", with, without)
			}
			list, err := l.client.Containers(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range list {
				if c.UserID == user && seen[c.ID] != "" {
					t.Errorf("%s has the container that %s had", user, seen[c.ID])
				} else if c.UserID == user {
					seen[c.ID] = user
				}
				eventually(t, "Docker calls it "+c.Name, func() bool {
					found, err := l.engine.ContainerInspect(t.Context(), c.ID)
					return err == nil && found.Name == "/"+c.Name
				})
			}
		}
		if hits := l.metric(t, `sandboxd_pool_first_calls_total{outcome="hit"}`); hits != 4 {
			t.Errorf("%v hits", hits)
		}
		// A container whose user had it goes to nobody.
		_ = l.engine.ContainerRemove(t.Context(), l.warmID(t, "new-0"), container.RemoveOptions{Force: true})
		l.ready(t, 2)
		eventually(t, "each folder of the pool has a container", func() bool {
			folders, err := os.ReadDir(l.path("users/.pool"))
			return err == nil && len(folders) == len(l.pooled(t))
		})
		if _, err := os.Lstat(l.at("new-0", ".")); err != nil {
			t.Error(err)
		}
		l.toldOfPool(t, 2, 4)
	}, "SANDBOXD_POOL_SIZE=2")
}

// warmID is a container of a user's.
func (l *lab) warmID(t *testing.T, user string) string {
	t.Helper()
	list, err := l.client.Containers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.UserID == user && c.ID != "" {
			return c.ID
		}
	}
	t.Fatalf("%s has no container", user)
	return ""
}

// Many who come at once each have a container of their own, from the pool or not; calls of one user share one.
func TestPoolManyAtOnce(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.firstCall(t, "before", types.Exec{Command: "true"})
		l.ready(t, 2)
		var users sync.WaitGroup
		for i := range 4 {
			user := fmt.Sprintf("crowd-%d", i)
			l.registerAs(t, user, types.Registration{UserID: user})
			for range 3 {
				users.Go(func() {
					out, err := l.client.Exec(t.Context(), user, types.Exec{Permissions: workspace, TimeoutMs: unhurried, Command: "echo " + user + " >> log; sort -u log"})
					if err != nil || out.Stdout != user+"\n" {
						t.Errorf("%s: %q %v", user, out.Stdout, err)
					}
				})
			}
		}
		users.Wait()
		list, err := l.client.Containers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		has := map[string]int{}
		for _, c := range list {
			has[c.UserID]++
		}
		for i := range 4 {
			if user := fmt.Sprintf("crowd-%d", i); has[user] != 1 {
				t.Errorf("%s has %d containers", user, has[user])
			}
		}
	}, "SANDBOXD_POOL_SIZE=2")
}

// A service that is killed, at whatever point of a binding, leaves a user with the container or without one, and the
// home where it belongs.
func TestPoolKilled(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.firstCall(t, "before", types.Exec{Command: "true"})
		again := func() {
			t.Helper()
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
		}
		records := func() []string {
			names, _ := filepath.Glob(l.path("data/pool/bound/*.json"))
			return names
		}
		for _, at := range []struct {
			name string
			do   func(user, pooled, record string) error // what the disk is like when it is killed there
			warm bool
		}{
			{"when all is done", func(string, string, string) error { return nil }, true},
			{"between record and rename", func(user, pooled, _ string) error {
				return os.Rename(filepath.Dir(l.home(user)), pooled)
			}, true},
			{"before the record", func(_, _, record string) error { return os.Remove(record) }, false},
			{"while the record is damaged", func(_, _, record string) error { return os.WriteFile(record, []byte(`{"version":1`), 0o600) }, false},
			{"when the user's home has been exchanged", func(user, _, _ string) error {
				return errors.Join(os.Rename(l.home(user), l.home(user)+".old"), os.Mkdir(l.home(user), 0o755), os.Chown(l.home(user), ownerUID, ownerUID))
			}, false},
		} {
			user := "killed-" + strings.ReplaceAll(at.name, " ", "-")
			user = strings.ReplaceAll(user, "'", "")
			l.ready(t, 1)
			if out := l.firstCall(t, user, types.Exec{Command: "echo kept > file; sleep 0.01"}); out.Cold {
				t.Fatalf("%s: the pool was missed", at.name)
			}
			was := l.warmID(t, user)
			pooled := l.path("users/" + l.containerOf(t, user).Labels["run.daycare.sandbox.user"])
			l.stop(syscall.SIGKILL)
			record := l.path("data/pool/bound/" + was + ".json")
			if err := at.do(user, pooled, record); err != nil {
				t.Fatal(err)
			}
			again()
			exchanged := strings.Contains(at.name, "exchanged")
			out := l.run(t, user, types.Exec{Command: "cat file; echo more >> file"})
			if want := map[bool]string{false: "kept\n"}[exchanged]; out.Stdout != want || out.Cold == at.warm {
				t.Errorf("killed %s: cold %v, %q", at.name, out.Cold, out.Stdout)
			}
			if text, err := os.ReadFile(l.at(user, "file")); err != nil || !strings.HasSuffix(string(text), "more\n") {
				t.Errorf("killed %s: the home has %q, %v", at.name, text, err)
			}
			if now := l.warmID(t, user); (now == was) != at.warm {
				t.Errorf("killed %s: the container was %.12s and is %.12s", at.name, was, now)
			}
			_ = l.engine.ContainerRemove(t.Context(), l.warmID(t, user), container.RemoveOptions{Force: true})
			eventually(t, "its record is gone", func() bool { return !slices.Contains(records(), record) })
			if _, err := os.Lstat(l.at(user, "file")); err != nil {
				t.Errorf("killed %s: with the container goes the home: %v", at.name, err)
			}
		}
		// What waited for nobody goes with the service that made it.
		l.ready(t, 1)
		l.stop(syscall.SIGKILL)
		waited := l.poolDirs(t)
		again()
		l.ready(t, 1)
		for _, dir := range waited {
			eventually(t, dir+" is gone", func() bool {
				_, err := os.Lstat(dir)
				return errors.Is(err, os.ErrNotExist)
			})
		}
	}, "SANDBOXD_POOL_SIZE=1")
}

// A pool is of use to all kinds of calls of which it is said to be: what is planned for the user is what waited.
func TestPoolClasses(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		for i, kind := range []struct {
			permissions types.Permissions
			e           types.Exec
		}{
			{types.Permissions{}, types.Exec{Permissions: none, Command: "touch x 2>/dev/null || echo ok"}},
			{types.Permissions{WorkingDir: "/home/project/src"}, types.Exec{Permissions: workspace, Command: "touch x && cd .. && ! touch x 2>/dev/null && echo ok"}},
			{types.Permissions{WriteDirs: []string{"/home/a/b"}, ReadDirs: []string{"/home/c"}}, types.Exec{Permissions: []string{"@write:/home/a/b", "@read:/home/c"}, Command: "touch a/b/x && ! touch c/x 2>/dev/null && echo ok"}},
			{types.Permissions{}, types.Exec{Permissions: workspace, Home: "/home/agent", Command: "touch ~/x && ls agent && echo ok"}},
		} {
			for _, who := range []string{"first", "second"} {
				user := fmt.Sprintf("kind-%d-%s", i, who)
				l.registerAs(t, user, types.Registration{UserID: user, Permissions: kind.permissions})
				out := l.run(t, user, kind.e)
				if !strings.HasSuffix(out.Stdout, "ok\n") || out.Cold != (who == "first") {
					t.Errorf("%s: cold %v, %q %q", user, out.Cold, out.Stdout, out.Stderr)
				}
				l.ready(t, i+1)
			}
		}
	}, "SANDBOXD_POOL_SIZE=1")
}
