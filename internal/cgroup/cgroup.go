// Package cgroup reads what containers use from their control groups, reclaims the memory of idle ones, and tells how
// much memory and swap the host has.
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
	"time"

	"golang.org/x/sys/unix"
)

// Host is the file in which a host lists its swap, and the directory of its control groups.
type Host struct{ Swaps, ControlGroups string }

// ThisHost returns the Host on which this program runs.
func ThisHost() Host { return Host{"/proc/swaps", "/sys/fs/cgroup"} }

// Swap says what kinds of swap a host has.
type Swap struct{ Compressed, Disk bool }

// Swap reads which kinds of swap are on.
func (h Host) Swap() (s Swap, _ error) {
	text, err := os.ReadFile(h.Swaps)
	if err != nil {
		return s, fmt.Errorf("cannot tell which swap there is: %w", err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		switch {
		case i == 0: // the heading
		case strings.HasPrefix(line, "/dev/zram"):
			s.Compressed = true
		default:
			s.Disk = true
		}
	}
	return s, nil
}

// reclaims are the files by which a group gives its memory back, of both versions of control groups, and what is
// written to them; %s is the container's id.
var reclaims = []struct{ file, text string }{
	{"memory/docker/%s/memory.force_empty", "0"},
	{"memory/system.slice/docker-%s.scope/memory.force_empty", "0"},
	{"docker/%s/memory.reclaim", ""},
	{"system.slice/docker-%s.scope/memory.reclaim", ""},
}

// Reclaim makes the kernel reclaim the memory of a container, and returns how much of it is left, in bytes. It blocks
// while the memory is written to swap.
func (h Host) Reclaim(id string) (left int64, err error) {
	for _, how := range reclaims {
		file := filepath.Join(h.ControlGroups, fmt.Sprintf(how.file, id))
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		text, usage := how.text, filepath.Join(filepath.Dir(file), "memory.usage_in_bytes")
		if text == "" { // the second version wants to know how much, and containers may not swap there
			usage = filepath.Join(filepath.Dir(file), "memory.current")
			used, err := readNumber(usage)
			if err != nil {
				return 0, err
			}
			text = fmt.Sprint(used)
			if err := h.allowSwap(filepath.Dir(file), true); err != nil {
				return 0, err
			}
		}
		err := writeControl(file, text)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EBUSY) { // else it has given back what it could
			return 0, err
		}
		return readNumber(usage)
	}
	return 0, fmt.Errorf("its control group is not below %s: %w", h.ControlGroups, fs.ErrNotExist)
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

// ForbidSwap keeps a resumed container from swapping, where its limit of memory does not bound that.
func (h Host) ForbidSwap(id string) {
	for _, how := range reclaims {
		if how.text == "" {
			_ = h.allowSwap(filepath.Join(h.ControlGroups, filepath.Dir(fmt.Sprintf(how.file, id))), false)
		}
	}
}

func (h Host) allowSwap(group string, allowed bool) error {
	text := "0" // what Docker sets
	if allowed {
		text = "max"
	}
	return writeControl(filepath.Join(group, "memory.swap.max"), text)
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
func (h Host) MayReclaim() error {
	for _, dir := range []string{"memory", "."} {
		file := filepath.Join(h.ControlGroups, dir, "cgroup.procs")
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = f.Close()
		}
		return err
	}
	return fmt.Errorf("there are no control groups at %s", h.ControlGroups)
}

// Usage is what a container uses.
type Usage struct {
	At  time.Time
	CPU time.Duration // since its start
	// Memory is without Cache, which the kernel can take back; all in bytes.
	Memory, Cache, MemoryLimit int64
}

// groupFiles are the files with the memory and the time of a container's control group, for both versions of control
// groups; %s is the container's id. If there is a word, it comes before the time, in microseconds.
var groupFiles = []struct{ memory, time, word string }{
	{"memory/docker/%s/memory.usage_in_bytes", "cpuacct/docker/%s/cpuacct.usage", ""},
	{"memory/system.slice/docker-%s.scope/memory.usage_in_bytes", "cpuacct/system.slice/docker-%s.scope/cpuacct.usage", ""},
	{"docker/%s/memory.current", "docker/%s/cpu.stat", "usage_usec"},
	{"system.slice/docker-%s.scope/memory.current", "system.slice/docker-%s.scope/cpu.stat", "usage_usec"},
}

// Usage reads what a container uses. Its Memory includes the kernel's cache, as its limit does, and Cache is 0.
func (h Host) Usage(id string) (u Usage, err error) {
	for _, group := range groupFiles {
		u.Memory, err = readNumber(filepath.Join(h.ControlGroups, fmt.Sprintf(group.memory, id)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			u.At = time.Now()
			u.CPU, err = readTime(filepath.Join(h.ControlGroups, fmt.Sprintf(group.time, id)), group.word)
		}
		return u, err
	}
	return u, err
}

// readTime reads nanoseconds, or the microseconds after a word.
func readTime(file, word string) (time.Duration, error) {
	if word == "" {
		ns, err := readNumber(file)
		return time.Duration(ns), err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == word {
			us, err := strconv.ParseInt(value, 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", filepath.Base(file), word)
}

// AvailableMemory returns how much the host could give to programs without swapping, in bytes. If that is unknown, it
// is so much that nothing is removed because of it.
func AvailableMemory() int64 {
	const unknown = 1 << 62
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return unknown
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if rest, is := strings.CutPrefix(lines.Text(), "MemAvailable:"); is {
			if kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64); err == nil {
				return kib << 10
			}
		}
	}
	return unknown
}
