package dockerexec

import (
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

// The memory of a container that has been frozen for a while is given back: the kernel is asked to move it to compressed
// memory (zram), from where it comes back as it is used. Never to a disk: there are secrets in it.

// HostMemory is the files in which a host lists its swap, and those of containers' control groups.
type HostMemory struct{ Swaps, ControlGroups string }

// ThisHost returns that of the host on which this program runs.
func ThisHost() HostMemory { return HostMemory{"/proc/swaps", "/sys/fs/cgroup"} }

// Swap is what a host has to move memory to.
type Swap struct{ Compressed, Disk bool }

// Swap reads which swap is on.
func (h HostMemory) Swap() (s Swap, _ error) {
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

// reclaim gives back the memory of a container, and returns how much of it is left, in bytes. It blocks while that is
// written to where it goes.
func (h HostMemory) reclaim(id string) (left int64, err error) {
	for _, how := range reclaims {
		file := filepath.Join(h.ControlGroups, fmt.Sprintf(how.file, id))
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		text, usage := how.text, filepath.Join(filepath.Dir(file), "memory.usage_in_bytes")
		if text == "" { // the second version wants to know how much, and containers may not swap there
			usage = filepath.Join(filepath.Dir(file), "memory.current")
			used, err := readUsage(usage)
			if err != nil {
				return 0, err
			}
			text = fmt.Sprint(used)
			if err := h.allowSwap(filepath.Dir(file), true); err != nil {
				return 0, err
			}
		}
		err := writeControl(file, text)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EBUSY) { // else it gives back what it can
			return 0, err
		}
		return readUsage(usage)
	}
	return 0, fmt.Errorf("its control group is not below %s: %w", h.ControlGroups, fs.ErrNotExist)
}

func readUsage(file string) (int64, error) {
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

// forbidSwap has a container that goes on not swap any more, where that is not bounded with its memory.
func (h HostMemory) forbidSwap(id string) {
	for _, how := range reclaims {
		if how.text == "" {
			_ = h.allowSwap(filepath.Join(h.ControlGroups, filepath.Dir(fmt.Sprintf(how.file, id))), false)
		}
	}
}

func (h HostMemory) allowSwap(group string, allowed bool) error {
	text := "0" // what Docker sets: see hostConfig
	if allowed {
		text = "max"
	}
	return writeControl(filepath.Join(group, "memory.swap.max"), text)
}

// writeControl writes to a file of a control group, which is there.
func writeControl(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// MayReclaim returns why this program cannot have the memory of containers given back; nil if it can.
func (h HostMemory) MayReclaim() error {
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

const (
	// reclaimTries is how often the memory of a container is asked for while it is frozen, as the kernel gives back what it
	// has the time for, and enoughReclaimed what may be left, in bytes, for it not to be asked for again: of a gVisor container
	// the kernel keeps 5 MiB for itself, page tables for the most part.
	reclaimTries    = 8
	enoughReclaimed = 8 << 20
)

// reclaimFrozen gives back the memory of containers that have been frozen for so long, one after the other.
func (e *Executor) reclaimFrozen(before time.Time) {
	swap, err := e.host.Swap()
	if err != nil || !swap.Compressed || swap.Disk {
		return
	}
	e.mu.Lock()
	var chosen []*container
	for _, c := range e.unused() {
		if c.frozen && c.reclaims < reclaimTries && c.lastUsed.Before(before) {
			chosen = append(chosen, c)
		}
	}
	e.mu.Unlock()
	for _, c := range chosen {
		if e.ctx.Err() != nil {
			return
		}
		e.mu.Lock()
		frozen := c.frozen // still
		if frozen {
			c.reclaims++
		}
		e.mu.Unlock()
		if frozen {
			e.reclaim(c)
		}
	}
}

func (e *Executor) reclaim(c *container) {
	left, err := e.host.reclaim(c.id)
	if err != nil {
		e.unreclaimed.Do(func() {
			e.cfg.Log.Warn().Err(err).Msg("there is zram, but frozen containers keep their memory; docs/idle.md says how to change that")
		})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !c.frozen: // it goes on by now
		c.reclaims = 0
		e.host.forbidSwap(c.id)
	case err != nil || left < enoughReclaimed:
		c.reclaims = reclaimTries
	}
}
