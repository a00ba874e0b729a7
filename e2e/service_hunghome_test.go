package e2e

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// A home whose storage hangs, here a filesystem whose program is stopped, holds nobody up but its user, who is told.
func TestAHungHomeIsItsUsersAlone(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		behind := l.path("behind")
		if err := os.Mkdir(behind, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(behind, 250_000, 250_000); err != nil {
			t.Fatal(err)
		}
		mkdir(t, l.path("users/hung"))
		shows := l.place.show(t, buildLoopback(t, l.dir), behind, l.home("hung"))
		l.register(t, "hung")
		l.register(t, "fine")
		l.bash(t, "hung", workspace, "echo kept > file")
		l.bash(t, "fine", workspace, "true")
		defer func() { _ = shows.cmd.Process.Signal(syscall.SIGCONT) }()
		_ = shows.cmd.Process.Signal(syscall.SIGSTOP)

		l.isTold(t, "hung")
		l.goesOn(t, "fine", workspace)
		l.goesOn(t, "fine", none) // in another container
		l.register(t, "new")
		l.goesOn(t, "new", workspace)
		if _, err := l.client.Health(t.Context()); err != nil {
			t.Error(err)
		}
		_ = shows.cmd.Process.Signal(syscall.SIGCONT)
		eventually(t, "the home is used again", func() bool {
			out, err := l.client.Exec(t.Context(), "hung", types.Exec{Command: "cat file", Permissions: workspace})
			return err == nil && out.Stdout == "kept\n"
		})
	})
}

// isTold waits until a user's calls are answered with what is wrong with the storage. What is known of it holds for a second.
func (l *lab) isTold(t *testing.T, user string) {
	t.Helper()
	eventually(t, user+" is told", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := l.client.Read(ctx, user, types.Read{Target: client.Target("/home/file")})
		return kindOf(err) == types.Unavailable && strings.Contains(err.Error(), "check its storage")
	})
}

// goesOn runs a command, and fails when it is held up: the home hangs for as long as the scenario waits.
func (l *lab) goesOn(t *testing.T, user string, permissions []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if out, err := l.client.Exec(ctx, user, types.Exec{Command: "echo on", Permissions: permissions}); err != nil || out.Stdout != "on\n" {
		t.Errorf("%s: %+v, %v", user, out, err)
	}
}
