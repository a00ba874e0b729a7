//go:build linux

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// persistentCommand is a command that goes on without followers. What it starts and leaves behind
// goes on, too.
type persistentCommand struct {
	tree     *processTree
	root     *rootProcess
	process  spawn.Process
	tag      string
	note     json.RawMessage
	terminal bool
	began    uint64 // its number among the container's commands
	out      *followers

	input  chan struct{} // holds one while no write is under way
	pipes  *pipes
	closed bool // the input was closed; for whoever has taken the value of input
}

// run carries the command's output until the command has ended, and drains the output of what it
// left behind.
func (c *persistentCommand) run(timeout time.Duration) {
	isInTime := func() bool { return true } // once it has ended
	if timeout > 0 {
		isInTime = time.AfterFunc(timeout, func() { c.tree.killSession(c.root) }).Stop
	}
	var outputs sync.WaitGroup
	for i, kind := range []wire.Kind{wire.KindStdout, wire.KindStderr} {
		if o := c.pipes.outputs[i]; o != nil {
			outputs.Go(func() { c.copy(o, kind) })
		}
	}
	<-c.root.exited
	inTime := isInTime() // what it has left may go on
	if inTime && c.leavesSession() {
		settle(c.session, c.pipes.outputs[:], leftQuiet, leftLimit, nil)
	}
	// Other processes may have the pipes, for long: only what has been printed by now counts as the
	// command's.
	c.pipes.stopWaiting()
	outputs.Wait()
	exit := wire.Exit{TimedOut: !inTime}
	if c.root.status.Signaled() {
		exit.Signal = int(c.root.status.Signal())
	} else {
		exit.Code = c.root.status.ExitStatus()
	}
	c.out.end(exit)
	runtime.Gosched() // the answer goes first
	c.stopInput()
	c.drain()
}

// leavesSession reports whether the command, which has ended, may have left processes of its
// session. At a terminal, job control may have given them process groups of their own.
func (c *persistentCommand) leavesSession() bool {
	return c.terminal || !errors.Is(unix.Kill(-c.root.pid, 0), unix.ESRCH)
}

// session lists what the command, which has ended, has left of its session, and returns a channel
// that is closed when a child has been collected.
func (c *persistentCommand) session() ([]int, <-chan struct{}) {
	c.tree.mu.Lock()
	defer c.tree.mu.Unlock()
	if c.tree.roots[c.root.pid] != nil { // of another command, so nothing is left
		return nil, c.tree.reaped
	}
	return session(c.root.pid), c.tree.reaped
}

func (c *persistentCommand) copy(from *output, kind wire.Kind) {
	buffer := make([]byte, 8<<10)
	for seen := 0; ; {
		n, err := from.Read(buffer)
		if n > 0 {
			c.out.write(kind, bytes.Clone(buffer[:n]))
		}
		if err != nil {
			return
		}
		seen += n
		if n == len(buffer) && n < bulkThreshold && seen >= bulkThreshold && !c.terminal {
			buffer = make([]byte, bulkThreshold)
			from.readInBulk()
		}
	}
}

// stopInput prevents further input.
func (c *persistentCommand) stopInput() {
	if c.pipes.stdin == nil {
		return
	}
	_ = c.pipes.stdin.SetWriteDeadline(time.Unix(1, 0))
	<-c.input
	c.closed = true
	_ = c.pipes.stdin.Close()
	c.input <- struct{}{}
}

// drain reads what the processes left behind print: without a reader, printing would end them
// (pipe(7)).
func (c *persistentCommand) drain() {
	if c.terminal {
		c.pipes.close() // a terminal tells them by itself
		return
	}
	for _, o := range c.pipes.outputs {
		if o.ended {
			o.close()
		} else {
			go o.discard()
		}
	}
}

// errNoInput says that a command takes no input.
var errNoInput = errors.New("it takes no input")

// feed writes to the command's input, after earlier writes, and gives up when gone is closed.
func (c *persistentCommand) feed(data []byte, gone <-chan struct{}) error {
	return c.withInput(gone, func() error {
		written, watched := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(watched)
			select {
			case <-gone:
				_ = c.pipes.stdin.SetWriteDeadline(time.Unix(1, 0))
			case <-written:
			}
		}()
		_, err := c.pipes.stdin.Write(data)
		close(written)
		<-watched
		return err
	})
}

// endInput sends the end of input to the command.
func (c *persistentCommand) endInput(gone <-chan struct{}) error {
	return c.withInput(gone, func() error {
		c.pipes.endStdin()
		c.closed = !c.terminal // a terminal takes more afterwards
		return nil
	})
}

func (c *persistentCommand) withInput(gone <-chan struct{}, do func() error) error {
	if c.pipes.stdin == nil {
		return errNoInput
	}
	select {
	case <-c.input:
	case <-gone:
		return os.ErrDeadlineExceeded
	}
	defer func() { c.input <- struct{}{} }()
	if c.closed {
		return errNoInput
	}
	_ = c.pipes.stdin.SetWriteDeadline(time.Time{})
	select {
	case <-c.root.exited: // stopInput may have set its deadline before this, and does not set it again
		return errNoInput
	default:
	}
	err := do()
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EIO) { // the command has closed its input
		return errNoInput
	}
	return err
}

func (c *persistentCommand) resize(size *specs.Box) error {
	if !c.terminal {
		return errors.New("it has no terminal")
	}
	return resize(c.pipes.terminal, size)
}

func (c *persistentCommand) entry() control.Entry {
	return control.Entry{PID: c.root.pid, Tag: c.tag, Terminal: c.terminal, Note: c.note}
}

// end ends the command, what is below it and its session: with SIGTERM and, after the grace, with
// SIGKILL.
func (c *persistentCommand) end(grace time.Duration) {
	const look = 10 * time.Millisecond
	c.tree.signalTree(c.root, unix.SIGTERM)
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(look) {
		if left, _ := c.session(); len(left) == 0 && !c.runs() {
			break
		}
	}
	c.tree.killSession(c.root)
}

// killSession kills a root, what is below it and its whole session, until nothing of that is left.
// A process that has made itself independent, with a session of its own below another parent, goes
// on.
func (t *processTree) killSession(root *rootProcess) {
	for deadline := time.Now().Add(cleanupLimit); time.Now().
		Before(deadline); time.Sleep(5 * time.Millisecond) {
		t.mu.Lock()
		if now := t.roots[root.pid]; now != nil && now != root {
			t.mu.Unlock()
			return // another root has the pid, so nothing is left
		}
		pids := session(root.pid)
		if t.roots[root.pid] == root {
			pids = append(append(pids, root.pid), descendants(root.pid)...)
		}
		slices.Sort(pids) // parents first: a shell that lives when its child is killed says so
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		t.mu.Unlock()
		if len(pids) == 0 {
			return
		}
	}
}

// isIdle reports whether every process that has not ended has the agent's uid: a tenant's cannot
// get that.
func isIdle() bool {
	own := strconv.Itoa(os.Getuid())
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		status, err := os.ReadFile("/proc/" + entry.Name() + "/status")
		if err != nil { // it has ended
			continue
		}
		_, state, _ := strings.Cut(string(status), "\nState:")
		_, uids, found := strings.Cut(string(status), "\nUid:")
		if !found {
			return false
		}
		if real := strings.Fields(uids); !strings.HasPrefix(strings.TrimSpace(state), "Z") &&
			(len(real) == 0 || real[0] != own) {
			return false
		}
	}
	return true
}

// session lists the processes of a session that have not ended. While there are any, its id is not
// reused.
func session(id int) (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name may have anything in it: pid (name) state ppid pgrp session.
		_, rest, _ := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]),
			" ")
		fields := strings.Fields(rest)
		if len(fields) > 3 && fields[0] != "Z" && fields[3] == strconv.Itoa(id) {
			pids = append(pids, pid)
		}
	}
	return pids
}
