package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// kernel is gVisor's for one container.
type kernel struct {
	gvisor []int  // its processes
	group  string // the control group of the container
	usage  string // the file that has the group's processor time
}

// kernel finds the container's. It finds none if the container has ended or has no control group of
// its own.
func (c call) kernel() (k kernel, ok bool) {
	text, err := os.ReadFile(filepath.Join(c.bundle, "init.pid"))
	if err != nil {
		return kernel{}, false
	}
	first := strings.TrimSpace(string(text))
	text, err = os.ReadFile(filepath.Join(c.proc, first, "cgroup"))
	if err != nil {
		return kernel{}, false
	}
	var unified string
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 {
			continue
		}
		switch controllers, path := fields[1], fields[2]; {
		case controllers == "pids":
			k.group = filepath.Join(c.cgroups, "pids", path)
		case strings.HasSuffix(controllers, "cpuacct"):
			k.usage = filepath.Join(c.cgroups, "cpuacct", path, "cpuacct.usage")
		case controllers == "": // version 2
			unified = filepath.Join(c.cgroups, path)
		}
	}
	if k.group == "" {
		k.group = unified
	}
	if k.usage == "" {
		k.usage = filepath.Join(unified, "cpu.stat")
	}
	if id := c.id(); id == "" || !strings.Contains(k.group, id) {
		return kernel{}, false
	}
	// gVisor's processes are those that the shim has started.
	stat, ok := c.stat(first)
	if !ok {
		return kernel{}, false
	}
	for _, process := range k.processes() {
		if other, ok := c.stat(strconv.Itoa(process)); ok && other.parent == stat.parent {
			k.gvisor = append(k.gvisor, process)
		}
	}
	return k, len(k.gvisor) > 0
}

// id returns the container's, by which its bundle is named.
func (c call) id() string {
	bundle, err := filepath.Abs(c.bundle)
	if err != nil {
		return "" // a working directory that is gone
	}
	return filepath.Base(bundle)
}

// stop notes by whom the container is paused, stops gVisor's processes, and reports whether nothing
// runs any more, after that many looks at most. Programs that wake each other may be asleep at every
// look, so it compares their processor time first.
func (c call) stop(k kernel, by string, looks int) (bool, error) {
	if err := c.write(note{by, k.gvisor}); err != nil {
		return false, err
	}
	c.signal(k.gvisor, syscall.SIGSTOP)
	var used string
	for range looks {
		now, err := os.ReadFile(k.usage)
		if err != nil {
			return false, nil
		}
		before := used
		used, _, _ = strings.Cut(string(now), "\n")
		if used == before && c.quiet(k) {
			return true, nil
		}
		time.Sleep(2 * time.Millisecond)
	}
	return false, nil
}

// quiet reports whether all threads of gVisor's processes are stopped, and all threads of the
// group's other processes, in which programs run, are asleep. A thread has its state before it has
// left its processor, and its time is counted then. Until it has, the kernel says of its system call
// that it is running.
func (c call) quiet(k kernel) bool {
	if _, err := os.Stat(k.procs()); err != nil {
		return false
	}
	for _, process := range k.processes() {
		wanted := "S"
		if slices.Contains(k.gvisor, process) {
			wanted = "T"
		}
		tasks := filepath.Join(strconv.Itoa(process), "task")
		threads, _ := os.ReadDir(filepath.Join(c.proc, tasks)) // those of a process that has ended are none
		for _, thread := range threads {
			one := filepath.Join(tasks, thread.Name())
			stat, ok := c.stat(one)
			if !ok {
				continue // it has ended
			}
			now, _ := os.ReadFile(filepath.Join(c.proc, one, "syscall"))
			if stat.state != wanted || strings.TrimSpace(string(now)) == "running" {
				return false
			}
		}
	}
	return true
}

func (k kernel) procs() string { return filepath.Join(k.group, "cgroup.procs") }

// processes returns those of the container's control group.
func (k kernel) processes() []int {
	text, err := os.ReadFile(k.procs())
	if err != nil {
		return nil
	}
	return numbers(strings.Fields(string(text)))
}

// stat is of a process or thread.
type stat struct {
	state  string
	parent string
}

// stat reads a process's or a thread's, below /proc; there is none if it has ended.
func (c call) stat(of string) (s stat, ok bool) {
	text, err := os.ReadFile(filepath.Join(c.proc, of, "stat"))
	if err != nil {
		return stat{}, false
	}
	// Its name, in parentheses, may have anything in it.
	fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))
	if len(fields) < 2 {
		return stat{}, false
	}
	return stat{fields[0], fields[1]}, true
}

func numbers(texts []string) (all []int) {
	for _, text := range texts {
		if n, err := strconv.Atoi(text); err == nil && n > 0 {
			all = append(all, n)
		}
	}
	return all
}
