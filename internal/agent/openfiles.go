//go:build linux

package agent

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of OpenFiles: how many files it prints, and into how many it looks. Those of processes and
// descriptors are as for watches.
const (
	maxOpenFiles = 16
	maxLookedAt  = 256
)

// OpenFiles prints the databases and lock files below a directory that programs of its own user have
// open for writing: their paths, with a NUL after each, 16 at most. It is run as a command, because
// only the tenant may see what the tenant's programs have open.
func OpenFiles(out io.Writer, below string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	f := openFiles{below: strings.TrimSuffix(below, "/") + "/", seen: map[string]bool{},
		found: map[string]bool{}}
	looked := 0
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err != nil || pid == os.Getpid() {
			continue
		}
		if looked++; looked > maxProcesses {
			break
		}
		f.look("/proc/" + entry.Name())
	}
	lines := bufio.NewWriter(out)
	for path := range f.found {
		_, _ = lines.WriteString(path + "\x00")
	}
	return lines.Flush()
}

type openFiles struct {
	below string
	seen  map[string]bool // paths
	found map[string]bool // those of them to be printed
}

// look looks at what one process has open. What cannot be seen is another user's, or gone.
func (f openFiles) look(process string) {
	dir, err := os.Open(process + "/fd")
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxDescriptors)
	for _, fd := range names {
		path, err := os.Readlink(process + "/fd/" + fd)
		if err != nil || !strings.HasPrefix(path, f.below) || f.seen[path] {
			continue
		}
		what, err := os.Stat(process + "/fd/" + fd)
		if err != nil || !what.Mode().IsRegular() {
			continue
		}
		info, err := os.ReadFile(process + "/fdinfo/" + fd)
		if mark := markOf(info); err != nil || mark == "" || mark[0] == '0'+unix.O_RDONLY {
			continue
		}
		if len(f.seen) == maxLookedAt || len(f.found) == maxOpenFiles {
			return
		}
		f.seen[path] = true
		if path, is := lockedFile(path); is {
			f.found[path] = true
		}
	}
}

// lockedFile reports whether a file is one that programs lock: a database, what belongs to one, or a
// lock. It returns the database.
func lockedFile(path string) (string, bool) {
	switch name := strings.ToLower(filepath.Base(path)); {
	case name == "data.mdb", name == "lock.mdb", name == "lock", strings.HasSuffix(name, ".lock"):
		return path, true
	}
	for _, suffix := range []string{"-wal", "-journal", "-shm"} {
		if of, is := strings.CutSuffix(path, suffix); is && isSQLite(of) {
			return of, true
		}
	}
	return path, isSQLite(path)
}

// isSQLite reports whether a file is a database of SQLite. It does not touch what is no file, as a
// FIFO, of which a writer would notice.
func isSQLite(path string) bool {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	const begin = "SQLite format 3\x00"
	head := make([]byte, len(begin))
	n, _ := unix.Pread(fd, head, 0)
	return n == len(begin) && string(head) == begin
}
