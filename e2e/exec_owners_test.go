package e2e

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/agent/creds"
)

// takeInotify makes inotify instances until there are no more, says so in a file, and keeps them.
const takeInotify = `python3 -c '
import ctypes, time
libc = ctypes.CDLL(None)
n = 0
while n < 4096 and libc.inotify_init() >= 0: n += 1
open("/home/full", "w").write(str(n))
time.sleep(7377)'`

// What the kernel counts by user id one tenant cannot use up for others.
func TestOneUsersKernelLimits(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "greedy")
		l.register(t, "modest")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = l.client.Exec(ctx, "greedy", types.Exec{Permissions: workspace, Command: takeInotify, TimeoutMs: unhurried})
		}()
		defer func() { cancel(); <-ended }()
		eventually(t, "the instances are taken", func() bool { return holds(l.at("greedy", "full")) != "" })
		if l.runtime() == "runc" && holds(l.at("greedy", "full")) == "4096" { // gVisor's own have no limit
			t.Error("this shows nothing: fs.inotify.max_user_instances of this host is not below 4096")
		}
		if got := l.sh(t, "modest", `python3 -c 'import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)'`); got != "True" {
			t.Errorf("after another user's %s instances: %s", holds(l.at("greedy", "full")), got)
		}
	})
}

// Homes that the service makes have owners of their own, who are nobody on the host, after a restart too; one that
// is there keeps its owner; and when there are no more ids the call says so.
func TestHomesHaveOwners(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "old", "file", "x")
		for _, user := range []string{"old", "one", "two", "three"} {
			l.register(t, user)
		}
		want := map[string]uint32{"old": ownerUID, "one": 300_000, "two": 300_001}
		for range 2 {
			for _, user := range []string{"old", "one", "two"} {
				l.sh(t, user, "touch ~/mine /tmp/mine && test -O ~/mine && test -O /tmp/mine && test $(id -un) = user && ssh -G host >/dev/null")
				if l.owner(user) != want[user] || !l.owns(user, l.at(user, "mine")) {
					t.Errorf("%s: the home belongs to %d, want %d", user, l.owner(user), want[user])
				}
			}
			_, err := l.client.Exec(t.Context(), "three", types.Exec{Command: "true"})
			if err == nil || !strings.Contains(err.Error(), "widen the range") {
				t.Errorf("%v", err)
			}
			l.stop(syscall.SIGTERM)
			if err := l.start(); err != nil {
				t.Fatal(err)
			}
		}
		// A process of one whose id the image does not know: its folder is its agent's alone.
		p := l.startProcess(t, "one", types.StartProcess{Command: "echo here; sleep 7378"})
		prints(t, p, "here")
		info, err := os.Stat(l.path("users/one/processes/" + p.ID))
		if err != nil {
			t.Fatal(err)
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Uid != creds.Agent(l.owner("one")) || stat.Gid != l.owner("one") {
			t.Errorf("the folder is %d:%d's", stat.Uid, stat.Gid)
		}
	}, "SANDBOXD_HOME_OWNER=300000-300001")
}
