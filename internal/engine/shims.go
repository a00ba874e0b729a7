package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Shim is one of containerd's shims: the parent of everything that its container's runtime
// starts. Looking at shims needs the host's process ids.
//
// Docker holds the container's lock while it waits for a runtime that does not answer. It also
// forgets a container that it removed by force before it had seen its end, whose shim then stays
// for good. Both can be seen only here.
type Shim struct {
	PID       int
	Container string // Docker's id
	Children  []int
	// Execs are those of Children that are runtimes about to start a program in the container.
	Execs []int
	// Sources are what is mounted into the container from the host; empty if the shim's bundle is
	// gone.
	Sources []string
}

// namespace is containerd's namespace for what Docker runs.
const namespace = "moby"

var containerID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Shims returns the shims of all Docker daemons on this host, by process id.
func Shims() ([]Shim, error) { return host.list() }

// processes are those that /proc shows, or a test's directory; shims and runtimes belong to one
// owner, root.
type processes struct {
	dir   string
	owner int
}

var host = processes{"/proc", 0}

func (p processes) list() ([]Shim, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot look for shims: %w", err)
	}
	children := map[int][]int{}
	var shims []Shim
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(p.dir, entry.Name())
		if parent, ok := parentOf(dir); ok {
			children[parent] = append(children[parent], pid)
		}
		if id, ok := p.containerOf(dir); ok {
			shims = append(shims, Shim{PID: pid, Container: id, Sources: sources(dir)})
		}
	}
	slices.SortFunc(shims, func(a, b Shim) int { return a.PID - b.PID })
	for i := range shims {
		s := &shims[i]
		s.Children = children[s.PID]
		for _, pid := range s.Children {
			if p.isExec(filepath.Join(p.dir, strconv.Itoa(pid)), s.Container) {
				s.Execs = append(s.Execs, pid)
			}
		}
	}
	return shims, nil
}

// containerOf returns the container of a shim; false for any other process.
func (p processes) containerOf(dir string) (string, bool) {
	args := p.argsOf(dir)
	if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") {
		return "", false
	}
	flags := map[string]string{}
	for i, arg := range args[:len(args)-1] {
		flags[arg] = args[i+1]
	}
	id := flags["-id"]
	return id, flags["-namespace"] == namespace && containerID.MatchString(id)
}

// isExec reports whether a process is a runtime with a command line such as "runc --root … exec …
// <container>".
func (p processes) isExec(dir, container string) bool {
	args := p.argsOf(dir)
	return args[len(args)-1] == container && slices.Contains(args, "exec")
}

// argsOf returns the command line of a process that belongs to the owner, and one empty argument
// for any other: a tenant may give its processes any name.
func (p processes) argsOf(dir string) []string {
	line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil || ownerOf(dir) != p.owner {
		return []string{""}
	}
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
}

// ownerOf returns a process's uid; -1 if it has ended.
func ownerOf(dir string) int {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return -1
	}
	return int(st.Uid)
}

func parentOf(dir string) (int, bool) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, false
	}
	// The name, in parentheses, may hold anything.
	_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	fields := strings.Fields(string(rest))
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}

// sources reads the mounts from the bundle, which is a shim's working directory.
func sources(dir string) (list []string) {
	text, err := os.ReadFile(filepath.Join(dir, "cwd", "config.json"))
	if err != nil {
		return nil
	}
	var bundle struct {
		Mounts []struct {
			Source string `json:"source"`
		} `json:"mounts"`
	}
	if err := json.Unmarshal(text, &bundle); err != nil {
		return nil
	}
	for _, m := range bundle.Mounts {
		list = append(list, m.Source)
	}
	return list
}

// ShimOf finds the shim of a container. The error is fs.ErrNotExist if it has none.
func ShimOf(container string) (Shim, error) {
	all, err := Shims()
	if err != nil {
		return Shim{}, err
	}
	for _, s := range all {
		if s.Container == container {
			return s, nil
		}
	}
	return Shim{}, fmt.Errorf("container %.12s has no shim: %w", container, fs.ErrNotExist)
}

// KillExecs aborts the starting of programs in the container, and leaves running ones alone.
func (s Shim) KillExecs() { s.killChildren(s.Execs) }

// KillAll kills everything that the shim has running, including the container. What may not be
// killed is left: a container's own programs, if the service lacks the right.
func (s Shim) KillAll() { s.killChildren(s.Children) }

func (s Shim) killChildren(pids []int) {
	for _, pid := range pids {
		_ = kill(pid, func() bool {
			parent, ok := parentOf(filepath.Join("/proc", strconv.Itoa(pid)))
			return ok && parent == s.PID
		})
	}
}

// Kill ends a shim that nobody needs any more: its container is gone, and it has no children.
// containerd then removes what the shim had.
func (s Shim) Kill() error {
	return kill(s.PID, func() bool {
		id, ok := host.containerOf(filepath.Join("/proc", strconv.Itoa(s.PID)))
		return ok && id == s.Container
	})
}

// kill kills a process if it is still the one that is meant.
func kill(pid int, still func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	} else if err != nil {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !still() {
		return nil
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot kill process %d: %w", pid, err)
	}
	return nil
}
