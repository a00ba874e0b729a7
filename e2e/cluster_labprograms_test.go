package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is a process of a host's.
type program struct {
	cmd    *exec.Cmd
	exited chan struct{}
	log    *lockedBuffer
}

func (p *place) program(t *testing.T, environ []string, argv ...string) *program {
	t.Helper()
	r := &program{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{}), log: &lockedBuffer{}}
	r.cmd.Env, r.cmd.Stdout, r.cmd.Stderr = environ, r.log, r.log
	r.cmd.WaitDelay = 100 * time.Millisecond // what it has started may go on
	if err := p.do(r.cmd.Start); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.exited)
	}()
	return r
}

func (p *program) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// processes are all of a host's: the containers' first, which so go on before what is to kill them.
func (h *clusterHost) processes() []int {
	list := h.grouped()
	for _, p := range []*exec.Cmd{h.engine.cmd, h.daemon, h.etcd.cmd, h.fence.cmd} {
		list = append(append(list, childrenOf(p.Process.Pid)...), p.Process.Pid)
	}
	return list
}

// killAll kills them, as a power cut does, and returns when there are none: a Docker that is started then would take what is
// still to be collected of its containerd for one that runs.
func (h *clusterHost) killAll(t *testing.T) {
	t.Helper()
	all := h.processes()
	signalAll(all, syscall.SIGKILL)
	for _, exited := range []<-chan struct{}{h.engine.exited, h.exited, h.etcd.exited, h.fence.exited} {
		<-exited
	}
	eventually(t, "all of the host's processes are gone", func() bool {
		return !slices.ContainsFunc(all, func(pid int) bool { return syscall.Kill(pid, 0) == nil })
	})
}

// grouped are those of its containers.
func (h *clusterHost) grouped() (list []int) {
	for _, group := range h.groups() {
		_ = filepath.WalkDir(group, func(name string, _ os.DirEntry, _ error) error {
			if filepath.Base(name) == "cgroup.procs" {
				for _, pid := range strings.Fields(holds(name)) {
					if n, err := strconv.Atoi(pid); err == nil {
						list = append(list, n)
					}
				}
			}
			return nil
		})
	}
	return list
}

// childrenOf are the processes that a process has started.
func childrenOf(pid int) (list []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range threads {
		for _, child := range strings.Fields(holds(name)) {
			if n, err := strconv.Atoi(child); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

// removeGroup removes the control groups of a host's containers.
func (h *clusterHost) removeGroup() {
	for _, group := range h.groups() {
		_ = filepath.WalkDir(group, func(name string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() && name != group {
				_ = os.Remove(name)
			}
			return nil
		})
		_ = os.Remove(group)
	}
}

// groups are where they are in each hierarchy.
func (h *clusterHost) groups() []string {
	name := fenceGroupName(h.path("data"))
	all, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	own, _ := filepath.Glob("/sys/fs/cgroup/" + name)
	return append(all, own...)
}

// fenceGroupName is what a service's fence calls the control group of its containers.
func fenceGroupName(data string) string {
	sum := sha256.Sum256([]byte(data))
	return "daycaresandbox" + hex.EncodeToString(sum[:6]) + ".slice"
}

// powerSwitch makes a program for cluster.fenceCommand that switches a host off: it kills all that wire has told it of, and
// succeeds when none of that is left.
func (c *clusterLab) powerSwitch(t *testing.T) string {
	t.Helper()
	name := filepath.Join(c.dir, "switch")
	putFile(t, name, `#!/bin/sh -e
test -s "$0-$FENCE_HOST"
. "$0-$FENCE_HOST"
left() { find $groups -name cgroup.procs -exec cat {} + 2>/dev/null || :; }
kill -9 $pids 2>/dev/null || :
while all=$(left); test -n "$all"; do kill -9 $all 2>/dev/null || :; sleep 0.02; done
echo "pids= groups='$groups'" > "$0-$FENCE_HOST" # it may be run again, when those numbers are others'
`)
	if err := os.Chmod(name, 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// wire tells a switch what a host is.
func (h *clusterHost) wire(t *testing.T, program string) {
	t.Helper()
	var pids []string
	for _, pid := range h.processes() {
		pids = append(pids, strconv.Itoa(pid))
	}
	putFile(t, program+"-"+h.name, fmt.Sprintf("pids='%s'\ngroups='%s'\n", strings.Join(pids, " "), strings.Join(h.groups(), " ")))
}
