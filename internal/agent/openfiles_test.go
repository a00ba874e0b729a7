//go:build linux

package agent

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// holding starts a program that has files open, and returns its directory in /proc.
func holding(t *testing.T, files ...*os.File) string {
	t.Helper()
	c := exec.Command("sleep", "inf")
	c.ExtraFiles = files
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return fmt.Sprint("/proc/", c.Process.Pid)
}

// Told are databases and locks that are open for writing below a directory, and nothing else.
func TestOpenFiles(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	var files []*os.File
	open := func(name, content string, flags int) {
		t.Helper()
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if content != "" {
			if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.OpenFile(name, flags|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	const sqlite = "SQLite format 3\x00 and so on"
	open("app.db", sqlite, os.O_RDWR)
	open("app.db", "", os.O_RDWR)
	open("logged", sqlite, os.O_RDONLY)
	open("logged-wal", "x", os.O_RDWR)
	open("read.db", sqlite, os.O_RDONLY)
	open("notes", "SQLite format 3", os.O_RDWR)
	open("notes-wal", "x", os.O_RDWR)
	open("data.mdb", "", os.O_RDWR)
	open("LOCK", "", os.O_WRONLY)
	open("uv.lock", "", os.O_WRONLY)
	open("gone.lock", "", os.O_WRONLY)
	open(filepath.Join(elsewhere, "app.db"), sqlite, os.O_RDWR)
	if err := os.Remove(filepath.Join(dir, "gone.lock")); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo.lock")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	open("fifo.lock", "", os.O_RDWR)

	find := func(process string) (names []string) {
		f := openFiles{below: dir + "/", seen: map[string]bool{}, found: map[string]bool{}}
		f.look(process)
		for _, path := range slices.Sorted(maps.Keys(f.found)) {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return names
	}
	if got := find(holding(t, files...)); !slices.Equal(got, []string{"LOCK", "app.db", "data.mdb", "logged", "uv.lock"}) {
		t.Errorf("%q", got)
	}
	if got := find("/proc/none"); got != nil {
		t.Errorf("%q", got)
	}

	files = nil
	for i := range 3 * maxOpenFiles {
		open(fmt.Sprint(i, ".lock"), "", os.O_WRONLY)
	}
	if got := find(holding(t, files...)); len(got) != maxOpenFiles {
		t.Errorf("%d are told", len(got))
	}
	var printed bytes.Buffer
	if err := OpenFiles(&printed, filepath.Join(dir, "none")); err != nil || printed.Len() > 0 {
		t.Errorf("%q, %v", printed.Bytes(), err)
	}
}

// A link, a directory and a FIFO without a reader are no databases, and nothing waits for them.
func TestWhatIsNoDatabase(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(at("app.db"), []byte("SQLite format 3\x00"), 0o600), os.Symlink("app.db", at("link")), unix.Mkfifo(at("fifo"), 0o600),
		os.WriteFile(at("short"), []byte("SQLite"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if !isSQLite(at("app.db")) {
		t.Error("a database is none")
	}
	for _, name := range []string{"link", "fifo", "short", "none", ""} {
		if isSQLite(at(name)) {
			t.Errorf("%q is a database", name)
		}
	}
}
