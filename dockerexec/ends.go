package dockerexec

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Docker can miss that a container was out of memory: the runtime tells it of that and of the end
// by two ways, and what comes second does not count. Once Docker knows of the end, the control
// group that would tell is gone. So the first process of each container under gVisor is watched,
// and the control group is read when that process ends. The kernel ends it with all of gVisor's.

// end is the end of a container that is watched.
type end struct {
	learned   chan struct{} // closed when exhausted is set
	exhausted *Exhausted    // nil for another end, or an unknown one
}

// watch asks Docker for the first process of a container under gVisor, and begins to watch it.
func (e *Executor) watch(c *Container) {
	if !c.spec.Platform.GVisor {
		return
	}
	if found, err := e.engine.Inspect(e.ctx, c.ID()); err == nil && found.Runs() {
		e.watchEnd(found.ID, found.PID)
	}
}

// watchEnd begins to watch the first process of a container, unless it is watched, or cannot be:
// this program does not see it.
func (e *Executor) watchEnd(id string, pid int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.ids[id]
	if c == nil || !c.spec.Platform.GVisor || e.closed || e.ends[id] != nil {
		return
	}
	process := openProcess(pid, id)
	if process == nil {
		return
	}
	w, limits := &end{learned: make(chan struct{})}, c.spec.Platform.Limits
	e.ends[id] = w
	e.work.Go(func() {
		defer close(w.learned)
		if !awaitEnd(e.ctx, process) {
			return
		}
		if now, err := e.cgroups.Refusals(id); err == nil && now.Killed > 0 {
			w.exhausted = limits.OutOfMemory()
		}
	})
}

// watchedEnd returns what a container that has ended was out of, if that was watched. It waits for a
// moment until it is learned: Docker can take a container for ended whose shim alone was killed.
func (e *Executor) watchedEnd(ctx context.Context, id string) *Exhausted {
	ctx, cancel := context.WithTimeout(ctx, endingLag)
	defer cancel()
	e.mu.Lock()
	w := e.ends[id]
	e.mu.Unlock()
	if w == nil {
		return nil
	}
	select {
	case <-w.learned:
		return w.exhausted
	case <-ctx.Done():
		return nil
	}
}

// openProcess returns a process of a container as a file that can be read from when it has ended;
// nil if there is none, as where this program has a PID namespace of its own.
func openProcess(pid int, container string) *os.File {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	process := os.NewFile(uintptr(fd), "process")
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !strings.Contains(string(groups), container) {
		_ = process.Close()
		return nil
	}
	return process
}

// awaitEnd waits until a process has ended, and closes its file. It reports false if ctx has ended
// before.
func awaitEnd(ctx context.Context, process *os.File) bool {
	defer process.Close() //nolint:errcheck // nothing was written
	raw, err := process.SyscallConn()
	if err != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = process.SetReadDeadline(time.Unix(1, 0)) })()
	return raw.Read(func(fd uintptr) bool {
		one := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(one, 0)
		return err == nil && n > 0
	}) == nil
}
