//go:build linux

package agent

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// gVisor's kernel has inotify of its own, which hears only what happens through it. So what the
// service changes in a directory that it shares with the container is told to that kernel: a new
// file is renamed into its place here, which is an event like any other (rename), and of other
// changes an attribute is set to the value that it has (nudge).

// Rename renames a file of the tenant's, as the tenant, if a program of the tenant's watches files.
// Whatever the paths lead to, the tenant could have done it.
func Rename(uid uint32, r wire.Rename) (done wire.Renamed) {
	if done.Watched = isWatched(); !done.Watched {
		return done
	}
	_ = asTenant(uid, func() {
		flags := uint(unix.RENAME_NOREPLACE)
		if r.Replace {
			flags = 0
		}
		done.Done = unix.Renameat2(unix.AT_FDCWD, r.From, unix.AT_FDCWD, r.To, flags) == nil
	})
	return done
}

// asTenant calls do on a thread of its own, as the tenant, because the agent's own user may not be
// allowed into the tenant's directories.
func asTenant(uid uint32, do func()) error {
	became := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: this thread's users are others than the process's
		agent := uint32(os.Getuid())
		err := become(agent, uid, agent)
		if err == nil {
			do()
		}
		became <- err
	}()
	return <-became
}

// nudgePause is how long programs have to follow a file that was replaced before it is said to be
// modified: tail -F reads it only then.
const nudgePause = 50 * time.Millisecond

// nudge has those hear who watch paths that have changed outside: each path, or what it was in if it
// is gone. Attributes are what tail -F watches in a directory, and modifications what tail -f does.
// The tenant's identity is that of the thread: what is not the tenant's stays unheard.
func nudge(paths []string) {
	var files []string
	for _, path := range paths {
		var now unix.Stat_t
		if unix.Lstat(path, &now) != nil {
			path = filepath.Dir(path)
			if unix.Lstat(path, &now) != nil {
				continue
			}
		}
		kind := now.Mode & unix.S_IFMT
		if kind == unix.S_IFDIR || kind == unix.S_IFREG {
			_ = unix.Fchmodat(unix.AT_FDCWD, path, now.Mode&0o7777, 0)
		}
		if kind == unix.S_IFREG {
			files = append(files, path)
		}
	}
	if len(files) > 0 {
		time.Sleep(nudgePause)
	}
	for _, path := range files {
		var now, then unix.Stat_t
		if unix.Lstat(path, &now) != nil || now.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		setModified(path, now.Mtim)
		if unix.Lstat(path, &then) == nil && (then.Size != now.Size || then.Ino != now.Ino) {
			// Somebody wrote at the same moment, whose time that would have taken back.
			setModified(path, unix.Timespec{Nsec: unix.UTIME_NOW})
		}
	}
}

func setModified(path string, at unix.Timespec) {
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, path,
		[]unix.Timespec{{Nsec: unix.UTIME_OMIT}, at}, unix.AT_SYMLINK_NOFOLLOW)
}

// isWatched reports whether a program that is not the agent's has an inotify descriptor. Of another
// user's descriptors gVisor tells what fdinfo says (proc_pid_fdinfo(5)): of those that have no place
// in a file system, which share a mount, inotify's alone are open for reading only.
func isWatched() bool {
	mark := inotifyMark()
	if mark == "" {
		return false
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		dir := "/proc/" + entry.Name()
		if info, err := os.Stat(dir); err != nil || info.Sys().(*syscall.Stat_t).Uid == uint32(os.Getuid()) {
			continue
		}
		if watches(dir+"/fdinfo/", mark) {
			return true
		}
	}
	return false
}

// The descriptors of a process are looked at until so many numbers in a row are free.
const (
	maxDescriptors = 1024
	maxFree        = 32
)

func watches(fdinfo, mark string) bool {
	for fd, free := 0, 0; fd < maxDescriptors && free < maxFree; fd++ {
		info, err := os.ReadFile(fdinfo + strconv.Itoa(fd))
		if err != nil {
			free++
			continue
		}
		if free = 0; markOf(info) == mark {
			return true
		}
	}
	return false
}

// inotifyMark is markOf an inotify descriptor; empty if that is not known.
var inotifyMark = sync.OnceValue(func() string {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return ""
	}
	return markOf(info)
})

// markOf returns the mount of a descriptor and how it is open, or nothing.
func markOf(fdinfo []byte) (mark string) {
	for lines := bufio.NewScanner(bytes.NewReader(fdinfo)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimSpace(value)
		switch name {
		case "flags":
			flags, err := strconv.ParseUint(value, 8, 64)
			if err != nil {
				return ""
			}
			mark += strconv.Itoa(int(flags & unix.O_ACCMODE))
		case "mnt_id":
			mark += " " + value
		}
	}
	return mark
}
