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
// The directory is looked up once, so whatever it is then, a file is renamed within one directory:
// other containers of the user may exchange what is on the way, and cannot have it put elsewhere.
func Rename(uid uint32, r wire.Rename) (done wire.Renamed) {
	if done.Watched = isWatched(); !done.Watched || r.To == "" { // then that is all that is asked
		return done
	}
	if r.From == "" {
		awaitReplaced(uid, filepath.Join(r.Dir, r.To))
		return done
	}
	_ = asTenant(uid, func() {
		dir, err := unix.Open(r.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return
		}
		defer unix.Close(dir)
		done.Done = filepath.Base(r.From) == r.From && filepath.Base(r.To) == r.To &&
			unix.Renameat(dir, r.From, dir, r.To) == nil
	})
	return done
}

// A file is awaited to be replaced for so long, looked at so often, and so many are at a time.
const (
	replacedWithin = 3 * time.Second
	replacedLook   = 5 * time.Millisecond
	maxAwaited     = 16
)

var awaited = make(chan struct{}, maxAwaited)

// awaitReplaced opens a file, and sets its mode to what it is once another one has its name: who
// watches the file itself hears that, and cannot hear of what happens to its name outside. It
// returns as soon as the file is open.
func awaitReplaced(uid uint32, path string) {
	select {
	case awaited <- struct{}{}:
	default:
		return // so many change together that whoever watches hears of others
	}
	begun := make(chan struct{})
	opened := sync.OnceFunc(func() { close(begun) })
	go func() {
		defer func() { <-awaited }()
		defer opened()
		_ = asTenant(uid, func() {
			fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			opened()
			if err != nil {
				return
			}
			defer unix.Close(fd)
			var held, named unix.Stat_t
			if unix.Fstat(fd, &held) != nil {
				return
			}
			for end := time.Now().Add(replacedWithin); ; time.Sleep(replacedLook) {
				last := time.Now().After(end)
				err := unix.Lstat(path, &named)
				if err != nil || named.Ino != held.Ino || named.Dev != held.Dev {
					if unix.Fstat(fd, &held) == nil {
						retouch(fd, held)
					}
					return
				}
				if last {
					return
				}
			}
		})
	}()
	<-begun
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

// nudge has those hear who watch paths that have changed outside: each path, or what it was in if it
// is gone; and of modified ones that their content has changed. The tenant's identity is that of the
// thread: what is not the tenant's stays unheard. Each is opened once, and gets what it has: whatever
// other containers of the user exchange meanwhile, nothing is changed by it.
func nudge(paths, modified []string) {
	for _, path := range paths {
		if !touch(path, false) {
			touch(filepath.Dir(path), false)
		}
	}
	for _, path := range modified {
		touch(path, true)
	}
}

// touch sets the mode of a file or directory to what it is or, if it was modified, a file's time. It
// reports whether anything is there.
func touch(path string, modified bool) (there bool) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var now, then unix.Stat_t
	if unix.Fstat(fd, &now) != nil {
		return false
	}
	if now.Mode&unix.S_IFMT == unix.S_IFREG && modified {
		self := selfOf(fd)
		setModified(self, now.Mtim)
		if unix.Fstat(fd, &then) == nil && then.Size != now.Size {
			// Somebody wrote at the same moment, whose time that would have taken back.
			setModified(self, unix.Timespec{Nsec: unix.UTIME_NOW})
		}
		return true
	}
	retouch(fd, now)
	return true
}

// retouch sets the mode of a file or directory to what it is. An owner would be no event in gVisor,
// which leaves out what does not differ.
func retouch(fd int, now unix.Stat_t) {
	if kind := now.Mode & unix.S_IFMT; kind == unix.S_IFREG || kind == unix.S_IFDIR {
		_ = unix.Fchmodat(unix.AT_FDCWD, selfOf(fd), now.Mode&0o7777, 0)
	}
}

func selfOf(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func setModified(path string, at unix.Timespec) {
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, at}, 0)
}

// watch is whether somebody watches files, as it was looked up last.
var watch struct {
	sync.Mutex
	at time.Time
	is bool
}

// watchFor is how long that is taken to be so.
const watchFor = 500 * time.Millisecond

// isWatched reports whether a program that is not the agent's has an inotify descriptor.
func isWatched() bool {
	watch.Lock()
	defer watch.Unlock()
	if time.Since(watch.at) > watchFor {
		watch.is = anyWatches()
		watch.at = time.Now()
	}
	return watch.is
}

// anyWatches looks for an inotify descriptor of the tenant's. Of another
// user's descriptors gVisor tells what fdinfo says (proc_pid_fdinfo(5)): of those that have no place
// in a file system, which share a mount, inotify's alone are open for reading only.
func anyWatches() bool {
	mark := inotifyMark()
	if mark == "" {
		return false
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	looked := 0
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil || looked == maxProcesses {
			continue
		}
		dir := "/proc/" + entry.Name()
		if info, err := os.Stat(dir); err != nil || info.Sys().(*syscall.Stat_t).Uid == uint32(os.Getuid()) {
			continue
		}
		looked++
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
	// maxProcesses is how many processes are looked at.
	maxProcesses = 200
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
