package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// A user goes with all that runs, whoever has registered it, and nothing of it comes back. The home goes when that is asked.
func TestAUserIsRemoved(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user, other = "removed", "removed-not"
		l.register(t, user)
		l.registerAs(t, user+"-2", types.Registration{UserID: user, Permissions: types.Permissions{WorkingDir: "/home/work"}})
		l.register(t, other)
		l.sh(t, other, "echo mine > /home/mine")
		l.sh(t, user, "echo kept > /home/kept")
		p, err := l.client.StartProcess(t.Context(), user+"-2", types.StartProcess{Command: "exec sleep 4127", KeepAlive: true})
		if err != nil {
			t.Fatal(err)
		}
		running := make(chan error, 1)
		go func() {
			_, err := l.client.Exec(t.Context(), user+"-2", types.Exec{Command: "touch /tmp/begun; exec sleep 4129"})
			running <- err
		}()
		eventually(t, "the command runs", func() bool { return l.sh(t, user, "ls /tmp") == "begun" })
		out, err := l.cli("user", "rm", user).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "user removed is removed: sandboxes 2, processes 1, containers ") {
			t.Errorf("%s %v", out, err)
		}
		if err := <-running; err == nil {
			t.Error("a command has succeeded whose user was removed")
		}
		if left := append(l.containersOf(t, user), l.processContainersOf(t, user)...); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		if text, err := os.ReadFile(l.at(user, "kept")); err != nil || string(text) != "kept\n" {
			t.Errorf("the home: %q, %v", text, err)
		}
		if _, err := os.Stat(p.LogPath); err == nil {
			t.Error("the log is left")
		}
		l.register(t, user)
		if list, err := l.client.Processes(t.Context(), user); err != nil || len(list) != 0 || l.sh(t, user, "cat /home/kept") != "kept" {
			t.Errorf("again: %v, %v", list, err)
		}
		if removed, err := l.client.RemoveUser(t.Context(), user, true); err != nil || !removed.Home || removed.Sandboxes != 1 {
			t.Errorf("with the home: %+v, %v", removed, err)
		}
		if _, err := os.Stat(l.path("users/" + user)); err == nil {
			t.Error("the user's folder is left")
		}
		if _, err := l.client.RemoveUser(t.Context(), user, true); kindOf(err) != types.NotFound {
			t.Errorf("what is no more: %v", err)
		}
		if got := l.sh(t, other, "cat /home/mine"); got != "mine" {
			t.Errorf("another user has %q", got)
		}
	})
}
