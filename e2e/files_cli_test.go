package e2e

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The command line's read, write, ls, cp and explain, and exec with grants.
func TestFilesOnTheCommandLine(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		run := func(stdin string, args ...string) (stdout, stderr string, code int) {
			t.Helper()
			cmd := l.cli(args...)
			var out, failed bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &failed
			_ = cmd.Run()
			return out.String(), failed.String(), cmd.ProcessState.ExitCode()
		}
		l.put(t, "files", ".ssh/id", secret)
		large := make([]byte, 20<<20)
		for i := range large {
			large[i] = byte(rand.Uint32())
		}
		local := t.TempDir()
		odd := "caf\xe9 \xff"
		if err := os.WriteFile(filepath.Join(local, odd), large, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, stderr, code := run("hello\n", "write", "-u", "files", "dir/note.txt", "-"); code != 0 || holds(l.at("files", "dir/note.txt")) != "hello\n" || !l.owns("files", l.at("files", "dir")) {
			t.Errorf("write: %d %s", code, stderr)
		}
		if stdout, stderr, code := run("", "read", "-u", "files", "dir/note.txt"); stdout != "hello\n" || code != 0 {
			t.Errorf("read: %d %q %s", code, stdout, stderr)
		}
		if _, stderr, code := run("", "cp", "-u", "files", filepath.Join(local, odd), ":dir/"); code != 0 || holds(l.at("files", "dir/"+odd)) != string(large) {
			t.Errorf("cp in: %d %s", code, stderr)
		}
		if _, stderr, code := run("", "cp", "-u", "files", ":~/dir/"+odd, filepath.Join(local, "back")); code != 0 || holds(filepath.Join(local, "back")) != string(large) {
			t.Errorf("cp out: %d %s", code, stderr)
		}
		if stdout, stderr, code := run("", "ls", "-u", "files", "dir"); code != 0 || !strings.Contains(stdout, "note.txt") || !strings.Contains(stdout, "caf") {
			t.Errorf("ls: %d %q %s", code, stdout, stderr)
		}
		if stdout, stderr, code := run("", "ls", "-u", "files"); code != 0 || strings.Contains(stdout, ".ssh") || !strings.Contains(stdout, "dir") {
			t.Errorf("ls of the home: %d %q %s", code, stdout, stderr)
		}
		for _, args := range [][]string{{"read", "-u", "files", ".ssh/id"}, {"cp", "-u", "files", ":.ssh/id", local}, {"ls", "-u", "files", ".ssh"}, {"write", "-u", "files", "~/.ssh/id", "-"}, {"cp", "-u", "files", filepath.Join(local, odd), ":.ssh/id"}} {
			if stdout, stderr, code := run("x", args...); code == 0 || strings.Contains(stdout, secret) || !strings.Contains(stderr, "deny list") {
				t.Errorf("%v: %d %q %s", args, code, stdout, stderr)
			}
		}
		// exec writes with the grants that it is given, and reads /tmp like the file commands.
		if _, stderr, code := run("", "exec", "-u", "files", "--grant", "@workspace", "--", "echo granted > /home/granted; echo shared > /tmp/shared"); code != 0 || holds(l.at("files", "granted")) != "granted\n" {
			t.Errorf("exec --grant @workspace: %d %s", code, stderr)
		}
		if stdout, _, _ := run("", "read", "-u", "files", "/tmp/shared"); stdout != "shared\n" {
			t.Errorf("what exec left in /tmp: %q", stdout)
		}
		if _, stderr, code := run("", "exec", "-u", "files", "--grant", "@write:/home/out", "--", "touch /home/out/x && ! touch /home/beside"); code != 0 || !exists(l.at("files", "out/x")) || exists(l.at("files", "beside")) {
			t.Errorf("exec --grant @write: %d %s", code, stderr)
		}
		if _, stderr, code := run("", "exec", "-u", "files", "--", "touch /home/ungranted"); code == 0 || exists(l.at("files", "ungranted")) || !strings.Contains(stderr, "Read-only file system") {
			t.Errorf("exec without a grant: %d %s", code, stderr)
		}
		// explain says what the calls above had, and starts nothing.
		before := len(l.containersOf(t, "files"))
		stdout, stderr, code := run("", "explain", "-u", "files", "--grant", "@write:/home/out")
		for _, want := range []string{"/home/out", "writable", "/home/.ssh", "hidden", "readOnly", "deny list", "/tmp"} {
			if !strings.Contains(stdout, want) {
				t.Errorf("explain lacks %q: %d %s %s", want, code, stdout, stderr)
			}
		}
		if stdout, stderr, code := run("", "explain", "-u", "files", "--grant", "@workspace"); code != 0 || !strings.Contains(stdout, "granted by @workspace") {
			t.Errorf("explain: %d %s %s", code, stdout, stderr)
		}
		if stdout, stderr, code := run("", "explain", "-u", "nobody-yet", "--grant", "@workspace"); code != 125 || !strings.Contains(stderr, `user "nobody-yet" has no sandbox`) || len(l.containersOf(t, "nobody-yet")) != 0 {
			t.Errorf("explain: %d %s %s", code, stdout, stderr)
		}
		if n := len(l.containersOf(t, "files")); n != before {
			t.Errorf("%d containers, %d before", n, before)
		}
		if got := holds(l.at("files", ".ssh/id")); got != secret {
			t.Errorf("the secret is now %q", got)
		}
	})
}
