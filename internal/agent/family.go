//go:build linux

package agent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/spawn"
)

// family knows the agent's children. Each is either a leader, the first process of a command that
// is running, or a leftover: package spawn makes every leader a subreaper, so a process becomes a
// child of the agent without being a leader only when the command that it belonged to has ended.
// Hence the one rule: a leftover is killed.
//
// The kernel keeps children by thread. It gives orphans to the first thread of a subreaper, and the
// agent's first thread starts nothing (Serve is called on it, locked), so it is enough to look there.
type family struct {
	// spawning is held for reading while a leader is being started and for writing by whoever
	// must know that every leader is registered.
	spawning sync.RWMutex

	ending atomic.Bool // nothing is started any more
	score  *OOMScore

	mu      sync.Mutex // covers the fields below, and every kill and wait, so that pids are not reused meanwhile
	leaders map[int]*leader
	reaped  chan struct{} // closed and replaced whenever a child has been waited for
	living  sync.Cond     // on mu: a leader was registered
}

// leader is a running command's first process.
type leader struct {
	pid    int
	status unix.WaitStatus // valid once exited is closed
	exited chan struct{}
}

// cleanupLimit is how long leftovers may take to die after SIGKILL.
const cleanupLimit = 10 * time.Second

func newFamily(score *OOMScore) *family {
	f := &family{score: score, leaders: map[int]*leader{}, reaped: make(chan struct{})}
	f.living.L = &f.mu
	go f.reap()
	return f
}

func (f *family) start(p spawn.Process) (*leader, error) {
	f.spawning.RLock()
	defer f.spawning.RUnlock()
	if f.ending.Load() {
		return nil, errEnding
	}
	f.score.raise()
	pid, err := spawn.Start(p)
	f.score.lower()
	if err != nil {
		return nil, err
	}
	l := &leader{pid: pid, exited: make(chan struct{})}
	f.mu.Lock()
	f.leaders[pid] = l
	f.living.Signal()
	f.mu.Unlock()
	return l, nil
}

var errEnding = errors.New("the session is ending")

// end starts nothing any more and kills every process of the container but the first and the caller (kill(2),
// pid -1). An error means that something is left, and that the container has to go.
func (f *family) end() error {
	f.ending.Store(true)
	started := make(chan struct{})
	go func() {
		f.spawning.Lock()
		close(started) // what was being started has been
		f.spawning.Unlock()
	}()
	deadline := time.Now().Add(cleanupLimit)
	for alone := false; ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-started:
			alone = true
		default:
		}
		// Also what is being started is killed, or somebody could hold it up.
		err := unix.Kill(-1, unix.SIGKILL)
		switch {
		case alone && errors.Is(err, unix.ESRCH):
			return nil
		case time.Now().After(deadline):
			return errors.New("processes do not die")
		}
	}
}

// reap waits for children for as long as the agent lives. It first looks at who has died and
// collects it only under the lock, so that a pid under the lock always means the same process.
func (f *family) reap() {
	for {
		var info siginfo
		err := waitAny(&info, unix.WEXITED|unix.WNOWAIT)
		switch {
		case err == nil:
			f.collect(int(info.pid))
		case errors.Is(err, unix.ECHILD):
			f.mu.Lock()
			if len(f.leaders) == 0 {
				f.living.Wait()
			}
			f.mu.Unlock()
		}
	}
}

func (f *family) collect(pid int) {
	f.mu.Lock()
	_, known := f.leaders[pid]
	f.mu.Unlock()
	if !known {
		// Either a leftover, or a leader that died before start could register it.
		f.spawning.Lock()
		defer f.spawning.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var status unix.WaitStatus
	if got, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); err != nil || got != pid {
		return
	}
	if l := f.leaders[pid]; l != nil {
		delete(f.leaders, pid)
		l.status = status
		close(l.exited)
	}
	close(f.reaped)
	f.reaped = make(chan struct{})
}

// signal sends to the leader alone or, when group is set, to its process group.
func (f *family) signal(l *leader, signal unix.Signal, group bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaders[l.pid] != l {
		return
	}
	pid := l.pid
	if group {
		pid = -pid
	}
	_ = unix.Kill(pid, signal)
}

// signalTree sends to the leader and everything below it, as far as it can be seen at this
// moment. It asks; what must die is killed with the leader and by sweep.
func (f *family) signalTree(l *leader, signal unix.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaders[l.pid] != l {
		return
	}
	for _, pid := range append([]int{l.pid}, descendants(l.pid)...) {
		_ = unix.Kill(pid, signal)
	}
}

// signalAll is for a family with one command: it sends to the command's process group, which nobody
// leaves unseen by forking, and to whatever else is below the agent at this moment, to each once:
// for many programs a second signal means something else.
func (f *family) signalAll(l *leader, signal unix.Signal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaders[l.pid] != l {
		return
	}
	var others []int
	for _, pid := range descendants(os.Getpid()) {
		if group, err := unix.Getpgid(pid); err == nil && group != l.pid {
			others = append(others, pid)
		}
	}
	_ = unix.Kill(-l.pid, signal)
	for _, pid := range others {
		_ = unix.Kill(pid, signal)
	}
}

// sweep kills what ended commands have left and returns when nothing is left. An error means
// that something could not be killed, and that the container should go.
func (f *family) sweep() error {
	if childless() {
		return nil
	}
	deadline := time.NewTimer(cleanupLimit)
	defer deadline.Stop()
	for {
		f.mu.Lock()
		reaped := f.reaped
		f.mu.Unlock()
		if len(f.leftovers()) == 0 {
			return nil
		}
		// Something that is no leader is here: again, without a start in between.
		f.spawning.Lock()
		rest := f.leftovers()
		f.mu.Lock()
		for _, pid := range rest {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		f.mu.Unlock()
		f.spawning.Unlock()
		if len(rest) == 0 {
			return nil
		}
		select {
		case <-reaped:
		case <-deadline.C:
			return fmt.Errorf("%d processes do not die", len(rest))
		}
	}
}

// leftovers lists the children of the agent's first thread that are not leaders.
func (f *family) leftovers() []int {
	self := strconv.Itoa(os.Getpid())
	all := readChildren("/proc/" + self + "/task/" + self + "/children")
	f.mu.Lock()
	defer f.mu.Unlock()
	rest := all[:0]
	for _, pid := range all {
		if f.leaders[pid] == nil {
			rest = append(rest, pid)
		}
	}
	return rest
}

// childless says that there is no child at all, living or not, with one system call.
func childless() bool {
	var info siginfo
	return errors.Is(waitAny(&info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG), unix.ECHILD)
}

// descendants lists what is below a process, children before theirs.
func descendants(pid int) []int {
	tree := children(pid)
	for i := 0; i < len(tree) && len(tree) < 1<<16; i++ {
		tree = append(tree, children(tree[i])...)
	}
	return tree
}

// children lists a process's children, of all of its threads.
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

// readChildren reads one thread's list. gVisor lists the threads of a child beside the child itself:
// those are left out, for a signal to one would be a signal to its process.
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
