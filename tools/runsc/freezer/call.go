package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// call is one call of Docker's shim.
type call struct {
	runsc  string   // the program that it is meant for
	args   []string // never nil
	bundle string   // the container's bundle; empty is the working directory
	// Where the files of the kernel's are.
	proc, cgroups string
}

var errPaused = errors.New("the container is paused")

// verbs are the commands of runsc that are not simply passed on.
var verbs = []string{"pause", "resume", "ps", "kill", "delete", "exec", "update", "events", "checkpoint"}

// answer does what is asked. It returns the arguments with which runsc has to do the rest, or nil.
func (c call) answer() (rest []string, err error) {
	at := slices.IndexFunc(c.args, func(arg string) bool { return slices.Contains(verbs, arg) })
	if at < 0 {
		return c.args, nil
	}
	if c.args[at] == "pause" {
		return c.pause()
	}
	note, paused := c.note()
	if !paused {
		return c.args, nil
	}
	switch c.args[at] {
	case "resume":
		if note.by == killed {
			return nil, nil
		}
		if err := c.goOn(note.gvisor); err != nil {
			return nil, err
		}
		if note.by == runsc {
			return c.args, nil
		}
		return nil, nil
	case "ps": // containerd takes a container without processes for one that was left behind
		_, err := fmt.Printf("[%d]\n", note.gvisor[0])
		return nil, err
	case "kill":
		if !killsAll(c.args) {
			return nil, errPaused
		}
		c.signal(note.gvisor, syscall.SIGKILL)
		note.by = killed // Docker resumes it next
		return nil, c.write(note)
	case "delete":
		c.signal(note.gvisor, syscall.SIGCONT)
		// runsc deletes a container that it has paused only by force, even if it has ended.
		return slices.Insert(slices.Clone(c.args), at+1, "--force"), nil
	}
	return nil, errPaused
}

// killsAll reports whether all of a container's processes are to be killed. After any other signal
// it would no longer be paused.
func killsAll(args []string) bool {
	if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--pid") }) {
		return false
	}
	last := args[len(args)-1]
	return last == "9" || strings.HasSuffix(last, "KILL")
}

// pause stops gVisor's processes, if the container has a control group of its own.
func (c call) pause() (rest []string, err error) {
	k, ok := c.kernel()
	if !ok {
		return c.args, nil
	}
	stopped, err := c.stop(k, ours, 5)
	if err == nil && !stopped {
		err = c.pauseByRunsc(k)
	}
	if err != nil {
		return nil, errors.Join(err, c.goOn(k.gvisor))
	}
	return nil, nil
}

// pauseByRunsc is for a container in which something runs.
func (c call) pauseByRunsc(k kernel) error {
	if err := c.goOn(k.gvisor); err != nil {
		return err
	}
	pause := exec.Command(c.runsc, c.args...)
	pause.Dir, pause.Stdin, pause.Stdout, pause.Stderr = c.bundle, os.Stdin, os.Stdout, os.Stderr
	if err := pause.Run(); err != nil {
		return err
	}
	// Nothing runs on, but on a busy host a thread may be late to stop.
	_, err := c.stop(k, runsc, 500)
	if err == nil {
		return nil
	}
	// The pause is refused, so it must not have happened.
	at := slices.Index(c.args, "pause")
	resume := exec.Command(c.runsc, slices.Replace(slices.Clone(c.args), at, at+1, "resume")...)
	resume.Dir = c.bundle
	return errors.Join(err, c.goOn(k.gvisor), resume.Run())
}

// A note says who has paused the container, and which processes are gVisor's. It is the file named
// paused in the container's bundle, which is empty or missing when the container is not paused.
type note struct {
	by     string
	gvisor []int
}

const (
	ours   = "ours"   // nothing ran in the container, so runsc knows of no pause
	runsc  = "runsc"  // runsc has paused it first
	killed = "killed" // it was paused, and has been killed
)

func (c call) note() (n note, paused bool) {
	text, err := os.ReadFile(c.paused())
	fields := strings.Fields(string(text))
	if err != nil || len(fields) == 0 {
		return note{}, false
	}
	n = note{fields[0], numbers(fields[1:])}
	return n, len(n.gvisor) > 0
}

func (c call) write(n note) error {
	text := n.by
	for _, process := range n.gvisor {
		text += fmt.Sprintf(" %d", process)
	}
	if err := os.WriteFile(c.paused(), []byte(text+"\n"), 0o644); err != nil {
		return fmt.Errorf("cannot note that the container is paused: %w", err)
	}
	return nil
}

func (c call) paused() string { return filepath.Join(c.bundle, "paused") }

// goOn has gVisor's processes run again.
func (c call) goOn(gvisor []int) error {
	c.signal(gvisor, syscall.SIGCONT)
	if err := os.WriteFile(c.paused(), nil, 0o644); err != nil {
		return fmt.Errorf("cannot note that the container is no longer paused: %w", err)
	}
	return nil
}

// signal sends a signal to gVisor's processes. One may have ended since the container was paused, and
// its number may be another process's, which is in no control group of the container's.
func (c call) signal(processes []int, s syscall.Signal) {
	for _, process := range processes {
		group, err := os.ReadFile(filepath.Join(c.proc, strconv.Itoa(process), "cgroup"))
		if err == nil && strings.Contains(string(group), c.id()) {
			_ = syscall.Kill(process, s)
		}
	}
}
