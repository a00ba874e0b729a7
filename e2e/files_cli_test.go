package e2e

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// A directory goes into a sandbox and comes back, and commands see it; what a command plants leads no copy astray.
func TestDirectoriesOnTheCommandLine(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		run := func(args ...string) (stderr string, code int) {
			cmd := l.cli(append([]string{args[0], "-u", "tree"}, args[1:]...)...)
			var failed bytes.Buffer
			cmd.Stderr = &failed
			_ = cmd.Run()
			return failed.String(), cmd.ProcessState.ExitCode()
		}
		local := t.TempDir()
		err := errors.Join(os.MkdirAll(local+"/src/bin", 0o755), os.WriteFile(local+"/src/bin/hello", []byte("#!/bin/sh\necho hello from $0\n"), 0o755),
			os.WriteFile(local+"/src/.token", []byte("t"), 0o600), os.Symlink("bin/hello", local+"/src/run"), os.Symlink("/etc/passwd", local+"/src/out"),
			os.Chmod(local+"/src/bin/hello", 0o755))
		if err != nil {
			t.Fatal(err)
		}
		if stderr, code := run("cp", "-r", local+"/src", ":"); code != 0 || stderr != "" || !l.owns("tree", l.at("tree", "src/bin/hello")) {
			t.Errorf("in: %d %s", code, stderr)
		}
		if stderr, code := run("exec", "--grant", "@workspace", "--", `cd src && test "$(./run)" = "hello from ./run" && test "$(stat -c %a .token bin)" = "$(printf '600\n755')" &&
			ln -s /home/.ssh/id key && mkdir made && echo made > made/f`); code != 0 {
			t.Errorf("a command: %d %s", code, stderr)
		}
		l.put(t, "tree", ".ssh/id", secret)
		if err := unix.Mkfifo(l.at("tree", "src/fifo"), 0o666); err != nil { // gVisor keeps its own to itself
			t.Fatal(err)
		}
		if stderr, code := run("cp", "-r", ":src", local+"/back"); code != 0 || stderr != "sandbox: not copied: 1 FIFO, socket or device\n" {
			t.Errorf("out: %d %s", code, stderr)
		}
		for name, text := range map[string]string{"run": "bin/hello", "out": "/etc/passwd", "key": "/home/.ssh/id"} {
			if got, err := os.Readlink(local + "/back/" + name); err != nil || got != text {
				t.Errorf("%s says %q, %v", name, got, err)
			}
		}
		for name, mode := range map[string]os.FileMode{"bin/hello": 0o755, ".token": 0o600} {
			if info, err := os.Stat(local + "/back/" + name); err != nil || info.Mode() != mode {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
		if holds(local+"/back/made/f") != "made\n" {
			t.Error("what the command made did not come out")
		}
		if stderr, code := run("cp", "-r", ":~/.", local+"/home"); code != 0 || exists(local+"/home/.ssh") || !strings.Contains(stderr, "hidden") {
			t.Errorf("the home: %d %s", code, stderr)
		}
		// A directory that a command has exchanged for a link is not written through.
		if stderr, code := run("exec", "--grant", "@workspace", "--", "rm -r src/bin && ln -s /home/.ssh src/bin"); code != 0 {
			t.Errorf("a command: %d %s", code, stderr)
		}
		if stderr, code := run("cp", "-r", local+"/src", ":"); code == 0 || !strings.Contains(stderr, "is a symbolic link") || exists(l.at("tree", ".ssh/hello")) {
			t.Errorf("through a link: %d %s", code, stderr)
		}
	})
}
