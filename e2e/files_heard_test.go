package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// hears prints what it hears of a directory and, by a watch of its own, of a file in it.
const hears = `import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
fd = libc.inotify_init()
watched = {libc.inotify_add_watch(fd, path.encode(), mask): name for path, mask, name in
	[("/home/site", 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400, "dir"), ("/home/site/page", 0x2 | 0x4 | 0x400 | 0x800, "file")]}
print("listening", flush=True)
names = {0x2: "modify", 0x4: "attrib", 0x40: "from", 0x80: "to", 0x100: "create", 0x200: "delete", 0x400: "deleteself", 0x800: "moveself"}
while True:
	data = os.read(fd, 1 << 16)
	while data:
		wd, mask, cookie, size = struct.unpack_from("iIII", data)
		name = data[16:16+size].rstrip(b"\0").decode()
		data = data[16+size:]
		for bit, what in names.items():
			if mask & bit and not name.startswith(".daycare-"): print(watched.get(wd), what, name, flush=True)`

// What the service changes is heard by who watches: in a process, and in a machine, where several do. Who watches a file
// hears that another one has taken its place.
func TestChangesAreHeard(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		watchers := []struct {
			argv         []string
			ready        string
			wrote, added string // what it says
			appended     string
		}{
			{[]string{"python3", "-c", hears}, "listening\n", "file deleteself \n", "dir to new\n", "dir modify log\n"},
			{[]string{"tail", "-n", "+1", "-F", "site/page", "site/log"}, "one\n", "two\n", "", "more\n"},
			{[]string{"node", "-e", `require("fs").watch("/home/site", (what, name) => console.log(what, name)); console.log("listening")`},
				"listening\n", "rename page\n", "rename new\n", "change log\n"},
		}
		for name, in := range map[string]types.In{"process": types.InCall, "machine": types.InSandbox} {
			grants, users := workspace, map[string][]types.Process{} // a view that cannot be written to cannot be told
			if in == types.InSandbox {
				grants = nil
			}
			said := func(what string, says func(i int) string) {
				t.Helper()
				for user, all := range users {
					for i, p := range all {
						if i = max(i, int(user[len(user)-1]-'0')); says(i) != "" {
							eventually(t, fmt.Sprintf("%s: %s: %q is said", user, what, says(i)), func() bool { return strings.Contains(logOf(t, p), says(i)) })
						}
					}
				}
			}
			for i, w := range watchers {
				user := fmt.Sprint("hearer-", name, "-0")
				if in == types.InCall { // each alone
					user = fmt.Sprint("hearer-", name, "-", i)
				}
				if users[user] == nil {
					l.registerPersistent(t, user)
					l.write(t, user, "site/page", "one\n")
					l.write(t, user, "site/log", "begun\n")
				}
				users[user] = append(users[user], l.startProcess(t, user, types.StartProcess{In: in, Permissions: grants, Argv: w.argv}))
			}
			said("ready", func(i int) string { return watchers[i].ready })
			for user := range users {
				l.write(t, user, "site/page", "two\n")
				l.write(t, user, "site/new", "new\n")
			}
			said("written", func(i int) string { return watchers[i].wrote })
			said("made", func(i int) string { return watchers[i].added })
			for user := range users {
				if _, err := l.client.Write(t.Context(), user, types.Write{Target: client.Target("site/log"), Content: "more\n", Append: true}); err != nil {
					t.Fatal(err)
				}
			}
			said("appended", func(i int) string { return watchers[i].appended })
		}
	})
}

// Who cannot be told is not: names that are hidden there, changes in another user's home, and what nobody watches.
func TestChangesThatAreNotHeard(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user, other = "unheard", "unheard-other"
		l.register(t, user)
		l.register(t, other)
		l.write(t, user, "site/page", "one\n")
		l.write(t, user, "site/private/open", "open\n")
		p := l.startProcess(t, user, types.StartProcess{Permissions: workspace, Restrictions: types.Restrictions{DenyRead: []string{"/home/site/private"}},
			Argv: []string{"python3", "-c", hears}})
		prints(t, p, "listening\n")
		l.write(t, user, "site/private/secret", "s3cret")
		l.write(t, other, "site/foreign", "foreign")
		l.write(t, user, "site/last", "last")
		eventually(t, "the last one is heard", func() bool { return strings.Contains(logOf(t, p), "dir to last\n") })
		for _, line := range strings.Split(logOf(t, p), "\n") {
			if strings.Contains(line, "secret") || strings.Contains(line, "foreign") {
				t.Errorf("it is told %q", line)
			}
		}
		// Many at once cost their reader a summary.
		var packed bytes.Buffer
		w := tar.NewWriter(&packed)
		for i := range 600 {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint("many/", i), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.client.Unpack(t.Context(), user, "site", &packed, false); err != nil {
			t.Fatal(err)
		}
		l.write(t, user, "site/after", "after")
		eventually(t, "what comes after many is heard", func() bool { return strings.Contains(logOf(t, p), "dir to after\n") })
	})
}

// A container that may write to a part alone cannot have another one, which may write to more, put a file elsewhere: what it
// exchanges on the way leads nowhere.
func TestExchangesWhileSomebodyWatches(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		const user = "exchanger"
		l.registerAs(t, user, types.Registration{UserID: user, Permissions: types.Permissions{WriteDirs: []string{"/home/site"}}})
		l.write(t, user, "site/page", "one\n")
		l.write(t, user, "site/sub/x", "old\n")
		l.write(t, user, "private/mine", "mine\n")
		l.bash(t, user, workspace, "chmod 600 private/mine")
		p := l.startProcess(t, user, types.StartProcess{Permissions: workspace, Argv: []string{"python3", "-c", hears}})
		prints(t, p, "listening\n")
		swap := l.startProcess(t, user, types.StartProcess{Permissions: []string{"@write:/home/site"}, Argv: []string{"python3", "-c", `import ctypes, os
os.chdir("/home/site"); os.symlink("/home/private", "link"); print("swaps", flush=True)
libc = ctypes.CDLL(None)
while True:
	try: os.rename("sub", "aside"); os.rename("link", "sub")
	except OSError: pass
	try: os.rename("sub", "link"); os.rename("aside", "sub")
	except OSError: pass`}})
		prints(t, swap, "swaps\n")
		done := 0
		for i := range 150 {
			if _, err := l.client.Write(t.Context(), user, types.Write{Target: client.Target("site/sub/x"), Content: fmt.Sprint(i),
				Seeing: types.Seeing{Permissions: []string{"@write:/home/site"}}}); err == nil {
				done++
			}
		}
		t.Logf("%d writes of 150 were made", done)
		if got := l.bash(t, user, workspace, "ls -A private; stat -c %a private/mine; cat private/mine"); got != "mine\n600\nmine" {
			t.Errorf("in the other directory: %q", got)
		}
	})
}
