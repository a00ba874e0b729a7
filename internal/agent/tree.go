//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/spawn"
)

// processTree keeps track of the agent's children. Each is either a root, the first process of a
// command that is running, or a leftover: package spawn makes every root a subreaper, so a process
// becomes a child of the agent without being a root only when the command that it belonged to has
// ended. Hence the one rule: a leftover is ended, by whoever ran the command that left it. (With
// CLONE_PARENT a root could give the agent a child, too, and of another thread than the first one;
// package seccomp refuses that.)
//
// The kernel keeps children by thread. It gives orphans to the first thread of a subreaper, and the
// agent's first thread starts nothing (Serve is called on it, locked), so it is enough to look
// there.
type processTree struct {
	score *OOMScore

	mu       sync.Mutex // covers the fields below, and every kill and wait, so that pids are not reused meanwhile
	roots    map[int]*rootProcess
	starting map[*int32]bool        // where the kernel puts the pids of children that are not roots yet, or never will be
	owners   map[int][]*rootProcess // the leftovers' pids, and whose commands may have left them
	ending   bool                   // nothing is started any more
	reaped   chan struct{}          // closed and replaced whenever a child has been waited for
	started  sync.Cond              // on mu: a start has succeeded or failed
}

// rootProcess is a running command's first process.
type rootProcess struct {
	pid    int
	gives  bool            // it is no subreaper (spawn.Process.GiveOrphans)
	status unix.WaitStatus // valid once exited is closed
	exited chan struct{}
}

// startLimit is how long a command may take to start, even on a busy machine: a start that another
// process has stopped is given up then. Tests set less.
var startLimit = 30 * time.Second

// cleanupLimit is how long leftovers may take to die after SIGKILL, including those of commands
// that end meanwhile.
const cleanupLimit = 30 * time.Second

// lookAgain is how long to wait before looking for leftovers again when none has been collected. A
// dead process that is traced cannot be collected until its tracer has died, and the tracer may
// become a leftover only when that process dies.
const lookAgain = 10 * time.Millisecond

func newProcessTree(score *OOMScore) *processTree {
	t := &processTree{
		score: score, roots: map[int]*rootProcess{}, starting: map[*int32]bool{},
		owners: map[int][]*rootProcess{}, reaped: make(chan struct{}),
	}
	t.started.L = &t.mu
	go t.reap()
	return t
}

// start starts a command's first process, and gives up when the context ends before it has started.
func (t *processTree) start(ctx context.Context, p spawn.Process) (*rootProcess, error) {
	p, done, err := shorten(p)
	if err != nil {
		return nil, err
	}
	defer done()
	p.PID = new(int32)
	t.mu.Lock()
	if t.ending {
		t.mu.Unlock()
		return nil, errEnding
	}
	t.starting[p.PID] = true
	t.mu.Unlock()
	t.score.raise()
	pid, err := spawn.Start(ctx, p)
	t.score.lower()
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.started.Signal()
	delete(t.starting, p.PID)
	if err != nil {
		return nil, err // if there is a process, it is collected as a leftover
	}
	root := &rootProcess{pid: pid, gives: p.GiveOrphans, exited: make(chan struct{})}
	t.roots[pid] = root
	return root, nil
}

var errEnding = errors.New("the session is ending")

// end prevents further starts and kills every process of the container but the first and the caller
// (kill(2), pid -1). An error means that something is left, and that the container has to go.
func (t *processTree) end() error {
	t.mu.Lock()
	t.ending = true
	t.mu.Unlock()
	for deadline := time.Now().Add(cleanupLimit); ; time.Sleep(5 * time.Millisecond) {
		t.mu.Lock()
		alone := len(t.starting) == 0
		t.mu.Unlock()
		// Processes that are being started are killed, too: otherwise one could hold this up.
		err := unix.Kill(-1, unix.SIGKILL)
		switch {
		case alone && errors.Is(err, unix.ESRCH):
			return nil
		case time.Now().After(deadline):
			return errors.New("processes do not die")
		}
	}
}

// reap waits for children for as long as the agent lives. It first looks at who has died, or
// stopped, and collects it only under the lock, so that a pid under the lock always means the same
// process.
func (t *processTree) reap() {
	for {
		var info siginfo
		err := waitAny(&info)
		switch {
		case err == nil:
			t.collect(int(info.pid))
			runtime.Gosched() // whatever waits for the child goes on first
		case errors.Is(err, unix.ECHILD):
			t.mu.Lock()
			if len(t.roots) == 0 && childless() { // a start may have failed meanwhile
				t.started.Wait()
			}
			t.mu.Unlock()
		}
	}
}

func (t *processTree) collect(pid int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.isStarting(pid) { // it has died before start could register it
		t.started.Wait()
	}
	var status unix.WaitStatus
	if got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); err != nil || got != pid {
		return
	}
	if !status.Exited() && !status.Signaled() {
		// It has made its parent its tracer (PTRACE_TRACEME) and stopped. The agent traces nobody,
		// so it would never go on.
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	}
	root, owners := t.roots[pid], t.owners[pid]
	delete(t.owners, pid)
	if root != nil {
		delete(t.roots, pid)
		root.status = status
		if !root.gives {
			owners = []*rootProcess{root}
		}
		defer close(root.exited)
	}
	if len(owners) > 0 && !childless() {
		t.adopt(owners)
	}
	close(t.reaped)
	t.reaped = make(chan struct{})
}

// adopt notes that the children of the agent that nobody owns yet are leftovers of these commands:
// their roots have ended, or leftovers of theirs have. Others that have ended in the same moment,
// and are not collected yet, may have left them as well. Then all of these commands wait for them.
// It is called with mu held.
func (t *processTree) adopt(owners []*rootProcess) {
	orphans := slices.DeleteFunc(ownChildren(), func(pid int) bool {
		return t.roots[pid] != nil || t.owners[pid] != nil || t.isStarting(pid)
	})
	if len(orphans) == 0 {
		return
	}
	owners = slices.Clone(owners)
	also := func(pid int, others ...*rootProcess) {
		for _, other := range others {
			if !other.gives && !slices.Contains(owners, other) && hasEnded(pid) {
				owners = append(owners, other)
			}
		}
	}
	for pid, root := range t.roots {
		also(pid, root)
	}
	for pid, others := range t.owners {
		also(pid, others...)
	}
	for _, pid := range orphans {
		t.owners[pid] = owners
	}
}

// hasEnded reports whether a child has ended that is not collected yet.
func hasEnded(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}

// isStarting reports whether a pid is that of a child that is not a root yet. It is called with mu
// held.
func (t *processTree) isStarting(pid int) bool {
	for at := range t.starting {
		if int(atomic.LoadInt32(at)) == pid {
			return true
		}
	}
	return false
}

// signal sends a signal to the root alone or, when group is set, to its process group.
func (t *processTree) signal(root *rootProcess, signal unix.Signal, group bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.roots[root.pid] != root {
		return
	}
	pid := root.pid
	if group {
		pid = -pid
	}
	_ = unix.Kill(pid, signal)
}

// signalTree sends a signal to the root and to everything below it that can be seen at this
// moment. It only asks; what must die is killed with the root and by sweep.
func (t *processTree) signalTree(root *rootProcess, signal unix.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.roots[root.pid] != root {
		return
	}
	for _, pid := range append([]int{root.pid}, descendants(root.pid)...) {
		_ = unix.Kill(pid, signal)
	}
}

// signalAll is for a tree with one command. It sends a signal to the command's process group, which
// no process leaves unseen by forking, and to whatever else is below the agent at this moment. Each
// process gets it only once: for many programs a second signal means something else.
func (t *processTree) signalAll(root *rootProcess, signal unix.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.roots[root.pid] != root {
		return
	}
	var others []int
	for _, pid := range descendants(os.Getpid()) {
		if group, err := unix.Getpgid(pid); err == nil && group != root.pid {
			others = append(others, pid)
		}
	}
	_ = unix.Kill(-root.pid, signal)
	for _, pid := range others {
		_ = unix.Kill(pid, signal)
	}
}

// sweep kills what a command has left behind, or with nil what any has, and returns when it is
// gone. An error means that something could not be killed, and that the container should go.
func (t *processTree) sweep(root *rootProcess) error {
	var deadline *time.Timer
	for {
		t.mu.Lock()
		reaped, rest := t.reaped, t.leftovers(root)
		for _, pid := range rest {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		t.mu.Unlock()
		if len(rest) == 0 {
			return nil
		}
		if deadline == nil {
			deadline = time.NewTimer(cleanupLimit)
			defer deadline.Stop()
		}
		select {
		case <-reaped:
		case <-time.After(lookAgain):
			if root != nil {
				t.mu.Lock()
				t.adopt([]*rootProcess{root})
				t.mu.Unlock()
			}
		case <-deadline.C:
			return fmt.Errorf("%d processes do not die", len(rest))
		}
	}
}

// leftovers lists the children of the agent that a command has left, or with nil those that any
// has. It is called with mu held.
func (t *processTree) leftovers(root *rootProcess) []int {
	if root == nil {
		return slices.DeleteFunc(ownChildren(), func(pid int) bool {
			return t.roots[pid] != nil || t.isStarting(pid)
		})
	}
	var pids []int
	for pid, owners := range t.owners {
		if slices.Contains(owners, root) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// ownChildren lists the children of the agent's first thread.
func ownChildren() []int {
	self := strconv.Itoa(os.Getpid())
	return readChildren("/proc/" + self + "/task/" + self + "/children")
}

// descendants lists the processes below a process, parents before their children.
func descendants(pid int) []int {
	tree := children(pid)
	for i := 0; i < len(tree) && len(tree) < 1<<16; i++ {
		tree = append(tree, children(tree[i])...)
	}
	return tree
}

// children lists the children of all threads of a process.
func children(pid int) []int {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task/"
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return nil
	}
	var pids []int
	for _, thread := range threads {
		pids = append(pids, readChildren(tasks+thread.Name()+"/children")...)
	}
	return pids
}

// readChildren reads one thread's list of children. gVisor lists a child's threads beside the child
// itself. They are left out, because a signal to a thread is a signal to its process.
func readChildren(file string) []int {
	list, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range strings.Fields(string(list)) {
		id, err := strconv.Atoi(field)
		if err == nil && unix.Tgkill(id, id, 0) == nil {
			pids = append(pids, id)
		}
	}
	return pids
}
