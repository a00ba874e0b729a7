package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/waittest"
)

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, name, content string) {
	t.Helper()
	if got, err := os.ReadFile(name); err != nil || string(got) != content {
		t.Errorf("%s: %.100q, want %.100q (%v)", name, got, content, err)
	}
}

func TestReadAndWrite(t *testing.T) {
	l := newLab(t, nil)
	if got := l.ok("", "write", "-u", "alice", "notes.txt", "buy milk\n"); got != "~/notes.txt: 9 bytes written\n" {
		t.Errorf("%q", got)
	}
	l.ok("and bread", "write", "-u", "alice", "--append", "~/notes.txt", "-")
	if got := l.ok("", "read", "-u", "alice", "--binary", "notes.txt"); got != "buy milk\nand bread" {
		t.Errorf("%q", got)
	}
	large := strings.Repeat("x", 20<<20) // more than a body of JSON may have
	l.ok(large, "write", "-u", "alice", "/home/caf\xe9", "-")
	wantFile(t, l.host("/home/caf\xe9"), large)
	stdout, stderr, err := l.run(t.Context(), "", "read", "-u", "alice", "--limit", "1", "notes.txt")
	if err != nil || !strings.HasPrefix(stdout, "buy milk\n") || stderr != "sandbox: 1 of 2 lines; --raw prints all of them, --offset 2 the next\n" || stdout != "buy milk\n" {
		t.Errorf("%q %q %v", stdout, stderr, err)
	}
	l.File("large", strings.Repeat("a\n", 16<<20)+"b\n")
	stdout, stderr, err = l.run(t.Context(), "", "read", "-u", "alice", "--limit", "1", "large")
	if err != nil || stdout != "a\n" || stderr != "sandbox: 1 of 16777217 lines; --offset 2 prints the next\n" {
		t.Errorf("%q %q %v", stdout, stderr, err)
	}
	if _, _, err := l.run(t.Context(), "", "read", "-u", "alice", "--raw", "large"); err == nil || !strings.Contains(inFlags.Replace(err.Error()), "more than 33554432; use sandbox cp") {
		t.Error(err)
	}
	if _, _, err := l.run(t.Context(), "", "read", "-u", "alice", "--offset", "0", "notes.txt"); err == nil || !strings.Contains(err.Error(), "offset 0") {
		t.Error(err)
	}
	if got := l.ok("", "read", "-u", "alice", "--json", "notes.txt"); !strings.Contains(got, `"totalLines": 2`) {
		t.Error(got)
	}
}

func TestList(t *testing.T) {
	l := newLab(t, nil)
	for _, name := range []string{"b", "a\x1b[31m", "caf\xe9"} {
		l.File(name, "123")
	}
	l.mkdir("dir")
	if got, want := l.ok("", "ls", "-u", "alice"), "\"a\\x1b[31m\"\nb\n\"caf\\xe9\"\ndir/\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := l.ok("", "ls", "-u", "alice", "-l", "/home"); !strings.Contains(got, "file       0644  3 ") || !strings.Contains(got, "  dir/\n") {
		t.Error(got)
	}
	if got := l.ok("", "ls", "-u", "alice", "--json"); !strings.Contains(got, `"nameBase64": "Y2Fm6Q=="`) {
		t.Error(got)
	}
}

func TestLinksAtTheCommandLine(t *testing.T) {
	l := newLab(t, nil)
	l.File("AGENTS.md", "rules")
	if err := os.Symlink("AGENTS.md", l.host("CLAUDE.md")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"read", "CLAUDE.md"}, {"write", "CLAUDE.md", "x"}, {"cp", ":CLAUDE.md", t.TempDir()}, {"ls", "CLAUDE.md"}} {
		_, _, err := l.run(t.Context(), "", append([]string{args[0], "-u", "alice"}, args[1:]...)...)
		if want := `"~/CLAUDE.md": it is a symbolic link to "~/AGENTS.md"; name that, or use -L`; err == nil || !strings.Contains(inFlags.Replace(err.Error()), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
	if got := l.ok("", "read", "-u", "alice", "-L", "CLAUDE.md"); got != "rules" {
		t.Errorf("%q", got)
	}
	l.ok("new rules", "write", "-u", "alice", "-L", "CLAUDE.md", "-")
	to := filepath.Join(t.TempDir(), "rules")
	l.ok("", "cp", "-u", "alice", "-L", ":CLAUDE.md", to)
	wantFile(t, to, "new rules")
	if got := l.ok("", "ls", "-u", "alice"); got != "AGENTS.md\nCLAUDE.md -> AGENTS.md\n" {
		t.Errorf("%q", got)
	}
	if got := l.ok("", "stat", "-u", "alice", "CLAUDE.md"); !strings.HasPrefix(got, "symlink  0777  9  ") || !strings.HasSuffix(got, "CLAUDE.md -> AGENTS.md\n") {
		t.Errorf("%q", got)
	}
	if got := l.ok("", "stat", "-u", "alice", "-L", "CLAUDE.md"); !strings.HasPrefix(got, "file  0644  9  ") {
		t.Errorf("%q", got)
	}
}

// Messages of the service about fields of the API name the flags.
func TestMessagesNameFlags(t *testing.T) {
	l := newLab(t, nil)
	l.File("latin", "caf\xe9\n")
	l.File("long", strings.Repeat("ü", 40<<10)+"\n")
	l.File("skipBytes", "caf\xe9\n")
	for _, tt := range []struct{ args, message string }{
		{"--offset 1 latin", "leave out --offset, --skip-bytes and --limit, or use --lossy"},
		{"--offset 1 skipBytes", `cannot read "~/skipBytes"`},
		{"--limit 1 --binary latin", "--offset, --skip-bytes and --limit are for text, not for --binary"},
		{"--lossy --binary latin", "--lossy and --binary are both given"},
		{"--skip-bytes 99999 long", "--skip-bytes 99999 is beyond the end: line 1 has 81921 bytes"},
	} {
		_, _, err := l.run(t.Context(), "", append([]string{"read", "-u", "alice"}, strings.Fields(tt.args)...)...)
		if err == nil || !strings.Contains(inFlags.Replace(err.Error()), tt.message) {
			t.Errorf("%s: %v, want %s", tt.args, err, tt.message)
		}
	}
	if got := l.ok("", "read", "-u", "alice", "latin"); got != "caf\xe9\n" {
		t.Errorf("%q", got)
	}
	if got := l.ok("", "read", "-u", "alice", "--lossy", "latin"); got != "caf\ufffd\n" {
		t.Errorf("%q", got)
	}
	stdout, stderr, err := l.run(t.Context(), "", "read", "-u", "alice", "long")
	if err != nil || stdout != strings.Repeat("ü", 25<<10) || !strings.Contains(stderr, "--offset 1 --skip-bytes 51200 the next") {
		t.Errorf("%d bytes, %q, %v", len(stdout), stderr, err)
	}
	if got := l.ok("", "read", "-u", "alice", "--offset", "1", "--skip-bytes", "51200", "long"); got != strings.Repeat("ü", 15<<10)+"\n" {
		t.Errorf("%d bytes", len(got))
	}
}

func TestFilesAreMovedAndRemoved(t *testing.T) {
	l := newLab(t, nil)
	l.ok("", "mkdir", "-u", "alice", "-p", "a/b")
	odd := "b\x1b[31m\r" // listed, so it can be read and removed
	l.File("a/"+odd, "red")
	if got := l.ok("", "read", "-u", "alice", "a/"+odd); got != "red" {
		t.Errorf("%q", got)
	}
	l.ok("", "write", "-u", "alice", "a/"+odd, "redder")
	l.ok("", "cp", "-u", "alice", ":a/"+odd, t.TempDir())
	l.ok("", "mv", "-u", "alice", "a/"+odd, "a/b")
	wantFile(t, l.host("a/b/"+odd), "redder")
	l.ok("", "mv", "-u", "alice", "a/b/"+odd, "a/plain")
	l.File("a/other", "other")
	if _, _, err := l.run(t.Context(), "", "mv", "-u", "alice", "a/plain", "a/other"); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Error(err)
	}
	l.ok("", "mv", "-u", "alice", "-f", "a/plain", "a/other")
	wantFile(t, l.host("a/other"), "redder")
	if _, _, err := l.run(t.Context(), "", "rm", "-u", "alice", "a"); err == nil || !strings.Contains(inFlags.Replace(err.Error()), "use -r") {
		t.Error(err)
	}
	l.ok("", "rm", "-u", "alice", "-r", "a/other", "a")
	if got := l.ok("", "ls", "-u", "alice"); got != "" {
		t.Errorf("%q", got)
	}
}

func TestCopiesKeepModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	l := newLab(t, nil)
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"secret": 0o600, "program": 0o755, "fixed": 0o444} {
		here := filepath.Join(dir, name)
		writeFile(t, here, name)
		if err := os.Chmod(here, mode); err != nil {
			t.Fatal(err)
		}
		l.ok("", "cp", "-u", "alice", here, ":"+name)
		l.ok("", "cp", "-u", "alice", ":"+name, here+".back")
		for _, name := range []string{l.host(name), here + ".back"} {
			if info, err := os.Stat(name); err != nil || info.Mode() != mode {
				t.Errorf("%s: %v, %v, want %v", name, info.Mode(), err, mode)
			}
		}
	}
}

func TestCopyIn(t *testing.T) {
	l := newLab(t, nil)
	here := filepath.Join(t.TempDir(), "data.csv")
	writeFile(t, here, "a,b\n")
	l.mkdir("dir")
	for _, tt := range []struct{ flag, value, to, arrives string }{
		{"-u", "alice", ":", "data.csv"},
		{"-u", "alice", ":x", "x"},
		{"-u", "alice", ":~/y", "y"},
		{"-u", "alice", ":/home/z", "z"},
		{"-u", "alice", ":dir", "dir/data.csv"},
		{"-u", "alice", ":dir/", "dir/data.csv"},
		{"-u", "alice", ":~", "data.csv"},
		{"--sandbox", "agent-7", ":x", "project/x"},
	} {
		if stdout := l.ok("", "cp", tt.flag, tt.value, here, tt.to); stdout != "" {
			t.Errorf("%s: printed %q", tt.to, stdout)
		}
		wantFile(t, l.host(tt.arrives), "a,b\n")
		if err := os.Remove(l.host(tt.arrives)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCopyOut(t *testing.T) {
	l := newLab(t, nil)
	l.File("out.bin", "\x00\xff")
	dir := t.TempDir()
	there, link := filepath.Join(dir, "there"), filepath.Join(dir, "link")
	writeFile(t, there, "old")
	if err := errors.Join(os.Chmod(there, 0o751), os.Symlink("there", link)); err != nil {
		t.Fatal(err)
	}
	for to, arrives := range map[string]string{dir: "out.bin", dir + "/": "out.bin", filepath.Join(dir, "new"): "new", link: "there"} {
		l.ok("", "cp", "-u", "alice", ":out.bin", to)
		wantFile(t, filepath.Join(dir, arrives), "\x00\xff")
	}
	l.ok("", "cp", "-u", "alice", ":out.bin", os.DevNull)
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Fatal("the null device was replaced")
	}
	if info, err := os.Stat(there); err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if names, err := filepath.Glob(filepath.Join(dir, ".sandbox-cp-*")); err != nil || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

func TestCopiesThatFail(t *testing.T) {
	l := newLab(t, nil)
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	writeFile(t, old, "old")
	for _, tt := range []struct{ from, to, message string }{
		{"a", "b", "begin with a colon"},
		{":a", ":b", "begin with a colon"},
		{"", ":b", "is empty"},
		{":a", "", "is empty"},
		{":", old, "not the name of a file"},
		{":dir/", old, "not the name of a file"},
		{":..", old, "not the name of a file"},
		{dir, ":x", "is a directory; use -r"},
		{filepath.Join(dir, "none"), ":x", "no such file"},
		{":none", old, "does not exist"},
		{":none", filepath.Join(dir, "no", "dir"), "does not exist"},
	} {
		if _, _, err := l.run(t.Context(), "", "cp", "-u", "alice", tt.from, tt.to); err == nil || !strings.Contains(err.Error(), tt.message) {
			t.Errorf("%s %s: %v", tt.from, tt.to, err)
		}
	}
	wantFile(t, old, "old")
}

// An interrupt in the middle of a download leaves what was there, and nothing else.
func TestInterruptedCopyLeavesNothing(t *testing.T) {
	l := newLab(t, nil)
	l.stall = make(chan struct{})
	l.File("large", strings.Repeat("x", 4<<20))
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "large"), "old")
	cmd := l.command("cp", "-u", "alice", ":large", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-l.stall
	waittest.Until(t, "the copy's file", func() bool {
		parts, _ := filepath.Glob(filepath.Join(dir, ".sandbox-cp-*"))
		return len(parts) == 1
	})
	_ = cmd.Process.Signal(unix.SIGINT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("%v", cmd.ProcessState)
	}
	wantFile(t, filepath.Join(dir, "large"), "old")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// A signal ends a copy that waits for somebody to open a FIFO, in either direction.
func TestCopiesThatWaitForAFIFO(t *testing.T) {
	l := newLab(t, nil)
	l.File("f", "x")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ends := range [][]string{{":f", fifo}, {fifo, ":f"}} {
		cmd := l.command(append([]string{"cp", "-u", "alice"}, ends...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		waittest.Until(t, "the copy at the FIFO", func() bool { return opens(cmd.Process.Pid, fifo) })
		_ = cmd.Process.Signal(unix.SIGINT)
		select {
		case <-ended:
			if status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGINT {
				t.Errorf("%q: %v", ends, cmd.ProcessState)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%q goes on", ends)
			_ = cmd.Process.Kill()
			<-ended
		}
	}
}

// opens reports whether a process blocks in opening a file.
func opens(pid int, name string) bool {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return false
	}
	defer memory.Close()
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		var call, folder, path uint64
		if _, err := fmt.Sscanf(string(text), "%v 0x%x 0x%x", &call, &folder, &path); err != nil || call != unix.SYS_OPENAT {
			continue
		}
		given := make([]byte, len(name))
		if _, err := memory.ReadAt(given, int64(path)); err == nil && string(given) == name {
			return true
		}
	}
	return false
}

func TestRefusalsAreTold(t *testing.T) {
	l := newLab(t, nil)
	_, _, err := l.run(t.Context(), "", "read", "-u", "alice", "none")
	var failure *client.Error
	if !errors.As(err, &failure) || failure.Kind != "notFound" {
		t.Errorf("%#v", err)
	}
	for _, command := range []string{"read", "ls"} {
		if _, _, err := l.run(t.Context(), "", command, "x"); err == nil || !strings.Contains(err.Error(), "give --user USER or --sandbox ID") {
			t.Errorf("%s without a sandbox: %v", command, err)
		}
	}
}
