//go:build linux

package agent

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// What a command leaves behind is either draining, as the tee of `exec > >(tee log)` is when the
// shell has ended, or it goes on for itself, as a server does. The one that drains has work: all
// writers of its pipe are gone, so it never waits. It computes, or it writes. So nobody looks at
// what a process has open, which only its own user may. Leftovers are waited for while they run or
// print; those that sleep are ended.
const (
	// leftQuiet is how long leftovers may do nothing until they are taken to go on for themselves,
	// and termQuiet the same after SIGTERM.
	leftQuiet, termQuiet = 50 * time.Millisecond, 250 * time.Millisecond
	// lookEvery is the time between two looks at what leftovers do.
	lookEvery = 4 * time.Millisecond
)

// Tests set longer limits, so that what they see does not depend on the machine.
var (
	// leftLimit is how long leftovers may take in all, and termLimit the same after SIGTERM.
	leftLimit, termLimit = 2 * time.Second, 2 * time.Second
	// readLimit is how long reading command lines may take: a process can make the kernel wait for
	// its memory.
	readLimit = time.Second
)

// endLeftovers lets what a command has left drain, and asks the rest to end. It returns the command
// lines of those that it has asked, and how many more there were. What is still there then is for
// sweep. When hurry is closed, nothing is waited for any more; if it was from the beginning,
// nothing is told either.
func (t *processTree) endLeftovers(root *rootProcess, outputs []*output,
	hurry <-chan struct{}) (lines []string, more int) {
	group := func() ([]int, <-chan struct{}) { return t.leftBy(root) }
	select {
	case <-hurry:
		return nil, 0
	default:
	}
	if settle(group, outputs, leftQuiet, leftLimit, hurry) == gone {
		return nil, 0
	}
	rest, _ := t.leftBy(root)
	rest = slices.DeleteFunc(rest, func(pid int) bool { return stateOf(pid, pid) == 'Z' })
	lines, more = commandLines(rest)
	t.mu.Lock()
	for _, pid := range below(t.leftovers(root)) { // parents first: a shell that lives when its child is ended says so
		_ = unix.Kill(pid, unix.SIGTERM)
		_ = unix.Kill(pid, unix.SIGCONT) // one that is stopped could not end
	}
	t.mu.Unlock()
	settle(group, outputs, termQuiet, termLimit, hurry)
	return lines, more
}

// leftBy lists what a command has left, with all that is below it, and returns a channel that is
// closed when a child has been collected. That is for looking: any of them may have ended.
func (t *processTree) leftBy(root *rootProcess) ([]int, <-chan struct{}) {
	t.mu.Lock()
	pids, reaped := t.leftovers(root), t.reaped
	t.mu.Unlock()
	return below(pids), reaped
}

// below adds to processes all that are below them.
func below(pids []int) []int {
	all := slices.Clone(pids)
	for _, pid := range pids {
		all = append(all, descendants(pid)...)
	}
	return all
}

// settled is why settle has returned: the group is gone, or it still has processes, or hurry was
// closed.
type settled int

const (
	gone settled = iota
	remain
	hurried
)

// settle waits until a group of processes is gone or has done nothing for the time quiet, but not
// longer than limit, and not when hurry is closed.
func settle(group func() ([]int, <-chan struct{}), outputs []*output, quiet, limit time.Duration,
	hurry <-chan struct{}) settled {
	var before activity
	begun := time.Now()
	for moved := begun; ; {
		pids, reaped := group()
		if len(pids) == 0 {
			return gone
		}
		now := before.look(pids)
		for _, o := range outputs {
			now = o != nil && o.moves() || now
		}
		at := time.Now()
		if now {
			moved = at
		}
		if at.Sub(moved) >= quiet || at.Sub(begun) >= limit {
			return remain
		}
		select {
		case <-reaped:
		case <-time.After(lookEvery):
		case <-hurry:
			return hurried
		}
	}
}

// activity is what a group of processes had done when it was last looked at.
type activity struct {
	pids []int
	time map[int]string // processor time, by thread
}

// look reports whether a group has done anything since the last look, or is about to.
func (a *activity) look(pids []int) (active bool) {
	active = !slices.Equal(a.pids, pids)
	times := map[int]string{}
	for _, pid := range pids {
		for _, thread := range threads(pid) {
			state, spent := readStat(pid, thread)
			times[thread] = spent
			active = active || state == 'R' || state == 'D' || a.time[thread] != spent
		}
	}
	a.pids, a.time = pids, times
	return active
}

// threads lists a process's threads.
func threads(pid int) (ids []int) {
	dir, err := os.Open("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if id, err := strconv.Atoi(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// readStat returns a thread's state, as proc(5) calls it, and the processor time that it has spent.
// A thread that is gone has state 0.
func readStat(pid, thread int) (state byte, spent string) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + strconv.Itoa(thread) +
		"/stat")
	if err != nil {
		return 0, ""
	}
	// The name may have anything in it: pid (name) state ppid ..., with the times as the 14th and
	// the 15th.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, ""
	}
	return fields[0][0], fields[11] + " " + fields[12]
}

func stateOf(pid, thread int) byte {
	state, _ := readStat(pid, thread)
	return state
}

// commandLines returns the command lines of processes, within the bounds of a wire.Exit, and how
// many more there are. What cannot be read, or is empty, is left out and counted.
func commandLines(pids []int) (lines []string, more int) {
	found := make(chan string, wire.MaxLeftovers)
	go func() {
		defer close(found)
		for _, pid := range pids[:min(len(pids), wire.MaxLeftovers)] {
			found <- commandLine(pid)
		}
	}()
	late := time.After(readLimit)
	for {
		select {
		case line, open := <-found:
			if !open {
				return lines, len(pids) - len(lines)
			}
			if line != "" {
				lines = append(lines, line)
			}
		case <-late:
			return lines, len(pids) - len(lines)
		}
	}
}

// printable replaces what is not printed by blanks.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, string(text))
}

// commandLine returns a process's arguments with blanks between them, and no character that is not
// printed.
func commandLine(pid int) string {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	defer file.Close()
	text, _ := io.ReadAll(io.LimitReader(file, 2*wire.MaxLeftover))
	line := strings.Join(strings.Fields(printable(text)), " ")
	if len(line) > wire.MaxLeftover {
		const end = "…"
		line = strings.ToValidUTF8(line[:wire.MaxLeftover-len(end)], "") + end
	}
	return line
}
