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

// What the service changes is heard by who watches: in a process, in a machine, and in a call that goes on. Who watches
// a file hears that another one has taken its place.
func TestChangesAreHeard(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for name, in := range map[string]types.In{"process": types.InCall, "machine": types.InSandbox} {
			user := "hearer-" + name
			l.registerPersistent(t, user)
			l.put(t, user, "site/page", "one\n")
			grants := workspace // a view that cannot be written to cannot be told
			if in == types.InSandbox {
				grants = nil
			}
			p := l.startProcess(t, user, types.StartProcess{In: in, Permissions: grants, Argv: []string{"python3", "-c", hears}})
			prints(t, p, "listening\n")
			tail := l.startProcess(t, user, types.StartProcess{In: in, Permissions: grants, Argv: []string{"tail", "-n", "+1", "-F", "site/log", "site/page"}})
			node := l.startProcess(t, user, types.StartProcess{In: in, Permissions: grants, Argv: []string{"node", "-e",
				`require("fs").watch("/home/site", (what, name) => console.log(what, name)); console.log("listening")`}})
			prints(t, node, "listening\n")
			eventually(t, name+": tail reads", func() bool { return strings.Contains(logOf(t, tail), "one\n") })
			told := func(p types.Process, says string) func() bool {
				return func() bool { return strings.Contains(logOf(t, p), says) }
			}
			check := func(what string, says map[string]types.Process) {
				t.Helper()
				for text, p := range says {
					eventually(t, fmt.Sprintf("%s: %s: %q is said", name, what, text), told(p, text))
				}
			}
			l.write(t, user, "site/page", "two\n")
			check("written", map[string]types.Process{"dir to page\n": p, "file deleteself \n": p, "two\n": tail, " page\n": node})
			l.write(t, user, "site/new", "new\n")
			check("made", map[string]types.Process{"dir to new\n": p, " new\n": node})
			l.write(t, user, "site/log", "begun\n")
			check("made", map[string]types.Process{"begun\n": tail})
			if _, err := l.client.Write(t.Context(), user, types.Write{Target: client.Target("site/log"), Content: "more\n", Append: true}); err != nil {
				t.Fatal(err)
			}
			check("appended", map[string]types.Process{"more\n": tail, "dir modify log\n": p})
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
