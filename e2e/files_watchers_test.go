package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// reloads is how servers of Python do it: it looks at a file's time.
const reloads = `import os, time
seen = os.stat("app.py").st_mtime_ns
print("begun", flush=True)
while os.stat("app.py").st_mtime_ns == seen: time.sleep(0.1)
print("reloaded", flush=True)`

// Real programs that watch a project, each as a process with a kernel of its own, hear of what the service writes, and of what
// another container writes.
func TestWatchersOfAProject(t *testing.T) {
	begin(t)
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join("watchers", name))
		if err != nil {
			t.Fatal(err)
		}
		putFile(t, filepath.Join(dir, name), string(text))
	}
	npm(t, dir, "ci", "--ignore-scripts")
	const user = "watcher"
	l := sharedLab(t, machine, "runsc", runtimeSettings("runsc"))
	for name, content := range map[string]string{
		"package.json": `{"name": "app", "private": true}`,
		"index.html":   "<h1>one</h1>",
		"sum.js":       "module.exports = (a, b) => a - b",
		"sum.test.js":  `test("sum", () => expect(require("./sum")(1, 2)).toBe(3))`,
		"server.js":    `console.log("serves one"); setInterval(() => {}, 1000)`,
		"watched.js":   `console.log("runs one"); setInterval(() => {}, 1000)`,
		"plain.js":     `console.log("runs plain"); setInterval(() => {}, 1000)`,
		"app.py":       "one",
		"log":          "one\n",
	} {
		l.put(t, user, "app/"+name, content)
	}
	uid := fmt.Sprint(ownerIn(t, l.home(user)))
	inDir(t, dir, nil, "cp", "-r", "node_modules", l.at(user, "app"))
	inDir(t, dir, nil, "chown", "-hR", uid+":"+uid, l.at(user, "app"))
	l.register(t, user)
	const watched = `console.log("runs two"); setInterval(() => {}, 1000)`
	watchers := []struct {
		argv          []string
		begun         string
		file, content string
		hears         string
		again         string // what it says when another container changes the file once more
	}{
		{[]string{"node", "node_modules/vite/bin/vite.js", "--host", "127.0.0.1", "--clearScreen=false"}, "ready in",
			"index.html", "<h1>two</h1>", "page reload index.html", "page reload index.html"},
		{[]string{"node", "node_modules/nodemon/bin/nodemon.js", "--watch", "server.js", "server.js"}, "serves one",
			"server.js", `console.log("serves two"); setInterval(() => {}, 1000)`, "serves two", "serves two"},
		{[]string{"node", "node_modules/jest/bin/jest.js", "--watchAll"}, "1 failed", "sum.js", "module.exports = (a, b) => a + b", "1 passed", "1 passed"},
		// Two watch the same file, and nothing but it, so one of them is not where the file is renamed.
		{[]string{"node", "--watch", "watched.js"}, "runs one", "watched.js", watched, "runs two", ""},
		{[]string{"node", "--watch", "watched.js"}, "runs one", "", "", "runs two", ""},
		{[]string{"node", "--watch", "plain.js"}, "runs plain", "plain.js", "", "", "runs plain"},
		{[]string{"tail", "-n", "+1", "-F", "log"}, "one\n", "log", "two\n", "two\n", ""},
		{[]string{"python3", "-c", reloads}, "begun", "app.py", "two", "reloaded", ""},
	}
	processes := make([]types.Process, len(watchers))
	for i, w := range watchers {
		processes[i] = l.startProcess(t, user, types.StartProcess{Permissions: workspace, Cwd: "app", Argv: w.argv, Env: map[string]string{"NO_COLOR": "1"}})
	}
	says := func(i int, want string, times int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%q says %q", watchers[i].argv, want), func() bool { return strings.Count(logOf(t, processes[i]), want) >= times })
	}
	for i, w := range watchers {
		says(i, w.begun, 1)
		// So that its agent runs, which a write does not wait for as long as this may take.
		if out, err := l.client.Exec(t.Context(), user, types.Exec{Process: processes[i].ID, Command: "true"}); err != nil || out.Failed {
			t.Errorf("%+v, %v", out, err)
		}
	}
	for _, w := range watchers {
		if w.content != "" {
			l.write(t, user, "app/"+w.file, w.content)
		}
	}
	for i, w := range watchers {
		says(i, w.hears, 1)
	}
	for i, w := range watchers {
		if w.again != "" {
			l.run(t, user, types.Exec{Permissions: workspace, Command: fmt.Sprintf("printf '%%s' '\n' >> app/%s", w.file)})
			says(i, w.again, 2)
		}
	}
}
