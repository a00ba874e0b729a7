// Package cgroup reads what containers use from their control groups, reclaims the memory of idle
// ones, and tells how much memory and swap the host has.
package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Host is the file in which a host lists its swap, and the directories of its block devices and of
// its control groups. It is safe for concurrent use.
type Host struct {
	Swaps, Blocks, ControlGroups string

	last atomic.Pointer[place] // where a container's control group was found last, so that not every group is looked at
}

// ThisHost returns the Host on which this program runs.
func ThisHost() *Host {
	return &Host{Swaps: "/proc/swaps", Blocks: "/sys/block", ControlGroups: "/sys/fs/cgroup"}
}

// Swap says what kinds of swap a host has: Compressed in memory, and what is or could be on a Disk.
type Swap struct{ Compressed, Disk bool }

// Swap reads which kinds of swap are on.
func (h *Host) Swap() (s Swap, _ error) {
	text, err := os.ReadFile(h.Swaps)
	if err != nil {
		return s, fmt.Errorf("cannot tell which swap there is: %w", err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		switch {
		case i == 0: // the heading
		case h.staysInMemory(line):
			s.Compressed = true
		default:
			s.Disk = true
		}
	}
	return s, nil
}

// staysInMemory reports whether a line of the file of swaps is of zram that writes to no disk: with a
// backing device, it moves there what is idle or cannot be compressed. What cannot be looked at may
// have one.
func (h *Host) staysInMemory(line string) bool {
	device, _, _ := strings.Cut(line, " ")
	number, is := strings.CutPrefix(device, "/dev/zram")
	if _, err := strconv.ParseUint(number, 10, 32); !is || err != nil {
		return false
	}
	dir := filepath.Join(h.Blocks, "zram"+number)
	text, err := os.ReadFile(filepath.Join(dir, "backing_dev"))
	if errors.Is(err, fs.ErrNotExist) { // a kernel that knows no backing devices
		_, err = os.Stat(dir)
		return err == nil
	}
	return err == nil && strings.TrimSpace(string(text)) == "none"
}

// version is what a version of control groups calls what is read and written here.
type version struct {
	memory, usage string // the hierarchy of memory, below the root, and a group's file with the memory in use
	cpu, time     string // the same of processor time
	word          string // what comes before the time, in microseconds; if it is empty, the file has nanoseconds alone
	reclaim       string // the file by which a group gives its memory back
	swap          string // the file that says whether a group may swap; empty if its limit of memory bounds that
	killed        string // the file that counts, as oom_kill, the programs killed because the group had no memory left
	pids          string // the hierarchy of processes; its pids.events counts, as max, the starts that the limit refused
}

var versions = []version{
	{memory: "memory", usage: "memory.usage_in_bytes", cpu: "cpuacct", time: "cpuacct.usage",
		reclaim: "memory.force_empty", killed: "memory.oom_control", pids: "pids"},
	{usage: "memory.current", time: "cpu.stat", word: "usage_usec", reclaim: "memory.reclaim",
		swap: "memory.swap.max", killed: "memory.events"},
}

// place is where Docker puts containers' control groups: in parent, named by the container's id
// between a prefix and a suffix.
type place struct {
	*version
	parent, prefix, suffix string
}

// memoryOf and cpuOf return the directories of a container's group.
func (p place) memoryOf(id string) string { return filepath.Join(p.memory, p.groupOf(id)) }
func (p place) cpuOf(id string) string    { return filepath.Join(p.cpu, p.groupOf(id)) }
func (p place) groupOf(id string) string  { return filepath.Join(p.parent, p.prefix+id+p.suffix) }

// find returns where a container's control group is. Docker calls the group by the id alone, or as
// systemd does. The group that it is in is Docker's own, or the one that Docker's or our settings
// name: a slice of systemd's may be below another one.
func (h *Host) find(id string) (place, error) {
	if last := h.last.Load(); last != nil {
		if _, err := os.Lstat(filepath.Join(h.ControlGroups, last.memoryOf(id),
			last.usage)); err == nil {
			return *last, nil
		}
	}
	for i := range versions {
		for _, parent := range []string{"*", "*/*"} {
			for _, at := range []place{{&versions[i], parent, "", ""},
				{&versions[i], parent, "docker-", ".scope"}} {
				root := filepath.Join(h.ControlGroups, at.memory)
				found, _ := filepath.Glob(filepath.Join(root, at.groupOf(id), at.usage)) // ids have no wildcards
				if len(found) == 0 {
					continue
				}
				at.parent = strings.TrimPrefix(filepath.Dir(filepath.Dir(found[0])), root)
				h.last.Store(&at)
				return at, nil
			}
		}
	}
	return place{}, fmt.Errorf("its control group is not below %s: %w", h.ControlGroups,
		fs.ErrNotExist)
}

// Reclaim makes the kernel reclaim the memory of a container, and returns how much of it is left,
// in bytes. It blocks while the memory is written to swap.
func (h *Host) Reclaim(id string) (left int64, err error) {
	at, err := h.find(id)
	if err != nil {
		return 0, err
	}
	group, text := filepath.Join(h.ControlGroups, at.memoryOf(id)), "0"
	if at.swap != "" { // the second version wants to know how much, and containers may not swap there
		if err := mayBeAsked(group); err != nil {
			return 0, err
		}
		used, err := readNumber(filepath.Join(group, at.usage))
		if err != nil {
			return 0, err
		}
		text = fmt.Sprint(used)
		if err := allowSwap(filepath.Join(group, at.swap), true); err != nil {
			return 0, err
		}
	}
	err = writeControl(filepath.Join(group, at.reclaim), text)
	if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EBUSY) { // else it has given back what it could
		return 0, err
	}
	return readNumber(filepath.Join(group, at.usage))
}

func readNumber(file string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is %.20q", filepath.Base(file), text)
	}
	return n, nil
}

// ForbidSwap keeps a resumed container from swapping, where its limit of memory does not bound
// that.
func (h *Host) ForbidSwap(id string) {
	if at, err := h.find(id); err == nil && at.swap != "" {
		_ = allowSwap(filepath.Join(h.ControlGroups, at.memoryOf(id), at.swap), false)
	}
}

func allowSwap(file string, allowed bool) error {
	text := "0" // what Docker sets
	if allowed {
		text = "max"
	}
	return writeControl(file, text)
}

// writeControl writes to an existing file of a control group.
func writeControl(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// MayReclaim returns why this program cannot reclaim the memory of containers; nil if it can.
func (h *Host) MayReclaim() error {
	for _, v := range versions {
		root := filepath.Join(h.ControlGroups, v.memory)
		f, err := os.OpenFile(filepath.Join(root, "cgroup.procs"), os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = f.Close()
		}
		if err == nil && v.swap != "" {
			err = mayBeAsked(root)
		}
		return err
	}
	return fmt.Errorf("there are no control groups at %s", h.ControlGroups)
}

// mayBeAsked returns an error if the kernel cannot be asked for a group's memory. The file is in
// all groups of version 2, the root among them.
func mayBeAsked(group string) error {
	if _, err := os.Lstat(filepath.Join(group, versions[1].reclaim)); errors.Is(err,
		fs.ErrNotExist) {
		return errors.New(
			"this kernel cannot be asked for the memory of a group: control groups of version 2 have memory.reclaim from Linux 5.19 on")
	}
	return nil
}

// Usage is what a container uses.
type Usage struct {
	At  time.Time
	CPU time.Duration // since its start
	// Memory is without Cache, which the kernel can take back; all in bytes.
	Memory, Cache, MemoryLimit int64
}

// Usage reads what a container uses. Its Memory includes the kernel's cache, as its limit does, and
// Cache is 0.
func (h *Host) Usage(id string) (u Usage, err error) {
	at, err := h.find(id)
	if err != nil {
		return u, err
	}
	if u.Memory, err = readNumber(
		filepath.Join(h.ControlGroups, at.memoryOf(id), at.usage)); err != nil {
		return u, err
	}
	u.At = time.Now()
	u.CPU, err = readTime(filepath.Join(h.ControlGroups, at.cpuOf(id), at.time), at.word)
	return u, err
}

// Refusals is how often a container came up against its limits since it was made.
type Refusals struct {
	Killed int64 // programs, because its memory was used up
	Pids   int64 // starts of processes and threads
}

// Refusals reads how often a container came up against its limits.
func (h *Host) Refusals(id string) (r Refusals, err error) {
	at, err := h.find(id)
	if err != nil {
		return r, err
	}
	if r.Killed, err = readCount(filepath.Join(h.ControlGroups, at.memoryOf(id), at.killed),
		"oom_kill"); err != nil {
		return r, err
	}
	r.Pids, err = readCount(filepath.Join(h.ControlGroups, at.pids, at.groupOf(id), "pids.events"),
		"max")
	return r, err
}

// readCount reads the number after a word.
func readCount(file, word string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == word {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", filepath.Base(file), word)
}

// readTime reads nanoseconds, or the microseconds after a word.
func readTime(file, word string) (time.Duration, error) {
	if word == "" {
		ns, err := readNumber(file)
		return time.Duration(ns), err
	}
	us, err := readCount(file, word)
	return time.Duration(us) * time.Microsecond, err
}

// AvailableMemory returns how much the host could give to programs without swapping, in bytes. If
// that is unknown, it is so much that nothing is removed because of it.
func AvailableMemory() int64 {
	const unknown = 1 << 62
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return unknown
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if rest, is := strings.CutPrefix(lines.Text(), "MemAvailable:"); is {
			if kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10,
				64); err == nil {
				return kib << 10
			}
		}
	}
	return unknown
}
