package e2e

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// boundKept is how many users keep their containers beside the next ones: each new service takes all of them over.
const boundKept = 8

// bindings is how many new users TestPoolBindings has; SANDBOX_E2E_BINDINGS=200 is for once in a while.
func bindings(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("SANDBOX_E2E_BINDINGS"), "16"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// No two users ever have the same pooled container or home, and no home is lost, with the service killed at any time while
// it binds.
func TestPoolBindings(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.firstCall(t, "before", types.Exec{Command: "true"})
		hadContainer, hadHome := map[string]string{}, map[uint64]string{}
		n, warm := bindings(t), 0
		for i := range n {
			user := fmt.Sprintf("bound-%d", i)
			eventually(t, "a container waits", func() bool { return l.metric(t, "sandboxd_pool_containers") > 0 })
			l.registerAs(t, user, types.Registration{UserID: user})
			mine := types.Exec{Permissions: workspace, TimeoutMs: unhurried, Command: "echo " + user + " >> own; sort -u own"}
			if i%3 == 2 {
				l.killWhile(t, time.Duration(i%24)*time.Millisecond, func() { _, _ = l.client.Exec(t.Context(), user, mine) })
			}
			out := l.run(t, user, mine)
			if out.Stdout != user+"\n" {
				t.Errorf("%s has %q", user, out.Stdout)
			}
			if !out.Cold {
				warm++
			}
			for _, c := range l.containersOf(t, user) {
				if was := hadContainer[c.ID]; was != "" && was != user {
					t.Errorf("%s has the container that %s had", user, was)
				}
				hadContainer[c.ID] = user
			}
			_, st := homeOf(t, l.home(user))
			if was := hadHome[st.Ino]; was != "" {
				t.Errorf("%s has the home that %s had", user, was)
			}
			hadHome[st.Ino] = user
			if i >= boundKept {
				for _, c := range l.containersOf(t, fmt.Sprintf("bound-%d", i-boundKept)) {
					l.removeByForce(c.ID)
				}
			}
		}
		for i := range n {
			user := fmt.Sprintf("bound-%d", i)
			if text, err := os.ReadFile(l.at(user, "own")); err != nil || len(text) == 0 {
				t.Errorf("what %s had is lost: %v", user, err)
			}
		}
		if warm < n/2 {
			t.Errorf("%d of %d were bound", warm, n)
		}
		t.Logf("%d of %d had a container that waited, or one that a service before had bound", warm, n)
	}, "SANDBOXD_POOL_SIZE=2")
}

// killWhile kills the service some time after something was begun, and starts it again.
func (l *lab) killWhile(t *testing.T, after time.Duration, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select { // this is when, and waits for nothing
	case <-time.After(after):
	case <-done:
	}
	l.stop(syscall.SIGKILL)
	<-done
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
}
