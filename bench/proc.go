package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// procBytes returns the value of a line such as "VmRSS:  123 kB" of a file in /proc, in bytes.
func procBytes(file, name string) (int64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == name+":" && string(fields[2]) == "kB" {
			kib, err := strconv.ParseInt(string(fields[1]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in %s", name, file)
}

// processorTime returns how long a process has run so far, in user mode and in the kernel, with its
// threads that have ended.
func processorTime(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED, the clock of clock_getcpuclockid(3)
	var ran unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ran); err != nil {
		return 0, fmt.Errorf("cannot read the processor time of process %d: %w", pid, err)
	}
	return time.Duration(ran.Nano()), nil
}

// hostProcesses returns a container's processes on the host: under gVisor, its kernel and its file
// server.
func hostProcesses(id string) (pids []int, _ error) {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	for _, name := range groups {
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), id) {
			continue // it has ended, or belongs to another container
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("container %.12s has no processes", id)
	}
	return pids, nil
}

// proportional returns the proportional set size of a container's processes on the host, in bytes.
func proportional(id string) (sum int64, _ error) {
	pids, err := hostProcesses(id)
	if err != nil {
		return 0, err
	}
	spaces, err := addressSpaces(pids)
	if err != nil {
		return 0, err
	}
	for _, pid := range spaces {
		size, err := procBytes(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Pss")
		if err != nil {
			return 0, err
		}
		sum += size
	}
	return sum, nil
}

// addressSpaces leaves out processes that share the memory of an earlier one, as gVisor's processes
// for the threads of one program do. The kernel reports the whole memory for each of them.
func addressSpaces(pids []int) (owners []int, _ error) {
	const memory = 1 // KCMP_VM, kcmp(2)
next:
	for _, pid := range pids {
		for _, owner := range owners {
			order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(owner), memory, 0, 0, 0)
			if errno != 0 {
				return nil, os.NewSyscallError("kcmp", errno)
			}
			if order == 0 {
				continue next
			}
		}
		owners = append(owners, pid)
	}
	return owners, nil
}
