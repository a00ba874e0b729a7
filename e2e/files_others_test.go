package e2e

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// What a command of another container changes is heard by who watches; what they change themselves they hear as ever, and
// nobody else's changes, or those of what is hidden there.
func TestChangesOfOtherContainersAreHeard(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user, other = "listener", "listener-other"
		for _, user := range []string{user, other} {
			l.register(t, user)
			l.write(t, user, "site/page", "one\n")
			l.write(t, user, "site/log", "one\n")
			l.write(t, user, "site/private/open", "open\n")
		}
		p := l.startProcess(t, user, types.StartProcess{Permissions: workspace, Restrictions: types.Restrictions{DenyRead: []string{"/home/site/private"}},
			Argv: []string{"python3", "-c", hears}})
		prints(t, p, "listening\n")
		hears := func(p types.Process, want string) {
			t.Helper()
			eventually(t, want+" is heard", func() bool { return strings.Contains(logOf(t, p), want) })
		}
		l.bash(t, user, workspace, "echo x >> site/first") // also of the first command, whose container starts for it
		hears(p, " first\n")
		tail := l.startProcess(t, user, types.StartProcess{Permissions: workspace, Argv: []string{"tail", "-n", "+1", "-f", "site/log"}})
		prints(t, tail, "one\n")
		l.bash(t, other, workspace, "echo foreign > site/foreign")
		l.bash(t, user, workspace, "echo s3cret > site/private/secret; echo two >> site/page; echo two >> site/log; echo new > site/new; mv site/new site/moved")
		hears(p, "dir modify page\n")
		hears(p, "file modify \n")
		hears(p, " moved\n")
		hears(tail, "two\n")
		// In its own container a change is heard once, as if nobody told of it.
		if out, err := l.client.Exec(t.Context(), user, types.Exec{Process: p.ID, Command: "mkdir site/sub; echo mine > site/mine"}); err != nil || out.Failed {
			t.Fatalf("%+v, %v", out, err)
		}
		hears(p, "dir modify mine\n")
		l.bash(t, user, workspace, "echo last > site/last")
		hears(p, " last\n")
		log := logOf(t, p)
		if got := strings.Count(log, " mine\n"); got != 2 { // made, and written to
			t.Errorf("its own changes are heard %d times:\n%s", got, log)
		}
		if got := strings.Count(log, "dir modify page\n"); got > 2 {
			t.Errorf("one change is heard %d times:\n%s", got, log)
		}
		for _, name := range []string{"secret", "foreign"} {
			if strings.Contains(log, name) {
				t.Errorf("it is told of %s:\n%s", name, log)
			}
		}
	})
}

// A tenant that changes very many files while others watch costs others nothing: their changes are heard, and the service
// does not grow.
func TestAFloodOfChanges(t *testing.T) {
	l := newLab(t, "runsc")
	const quiet, loud = "flood-quiet", "flood-loud"
	processes := map[string]types.Process{}
	for _, user := range []string{quiet, loud} {
		l.register(t, user)
		l.write(t, user, "site/page", "one\n")
		processes[user] = l.startProcess(t, user, types.StartProcess{Permissions: workspace, Argv: []string{"python3", "-c", hears}})
		prints(t, processes[user], "listening\n")
		eventually(t, "changes are heard", func() bool {
			l.bash(t, user, workspace, "echo x >> site/begin")
			return strings.Contains(logOf(t, processes[user]), " begin\n")
		})
	}
	before := residentKiB(t, l)
	flood := l.startProcess(t, loud, types.StartProcess{Permissions: workspace, Argv: []string{"python3", "-c", `import os
os.makedirs("/home/site/many", exist_ok=True)
for n in range(1_000_000):
	path = f"/home/site/many/{n % 5000}"
	with open(path, "a") as f: f.write("x")
	if n % 3 == 0: os.remove(path)
	if n == 5000: print("flooded", flush=True)`}})
	prints(t, flood, "flooded\n")
	l.bash(t, quiet, workspace, "echo calm > site/calm")
	eventually(t, "another user's change is heard", func() bool { return strings.Contains(logOf(t, processes[quiet]), " calm\n") })
	if _, err := l.client.StopProcess(t.Context(), loud, flood.ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	grown := 0
	eventually(t, "the daemon has not grown by more than 64 MiB", func() bool {
		grown = residentKiB(t, l) - before
		return grown <= 64<<10
	})
	t.Logf("the daemon has grown by %d KiB", grown)
}
