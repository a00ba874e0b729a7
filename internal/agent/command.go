//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// command is one stream's command.
type command struct {
	tree    *processTree
	spool   *spool
	stream  *yamux.Stream
	devNull int
	uid     uint32 // the user that runs it
	ahead   *ahead
	offered *offered

	starting context.Context // ends when the command has started, or must not start any more
	giveUp   context.CancelFunc

	mu    sync.Mutex // covers root, pipes and early
	root  *rootProcess
	pipes *pipes
	early []wire.Control // frames that came before the command had started

	hurry   chan struct{} // closed when the command is to end: then nothing that it has left is waited for
	hurried sync.Once

	release func() // closes the command's files, once its Exit has been sent

	sending sync.Mutex // held while a frame is written
}

// serve reads the Start, runs the command to its end and reports it.
func (c *command) serve() {
	defer c.giveUp()
	var start wire.Start
	if err := wire.ReadMessage(c.stream, wire.KindStart, &start); err != nil {
		_ = c.stream.Reset()
		return
	}
	switch {
	case start.Offer:
		c.offered.offer(c.stream)
		return
	case start.Accept:
		c.offered.accept(c.stream)
		return
	case start.Rename != nil:
		done := Rename(c.uid, *start.Rename)
		if wire.WriteMessage(c.stream, wire.KindExit, wire.Exit{Renamed: &done}) != nil {
			_ = c.stream.Reset()
			return
		}
		_ = c.stream.Close()
		return
	case start.LookUp != nil:
		if LookUp(c.uid, start.LookUp, start.Modified, start.Others) != nil ||
			wire.WriteMessage(c.stream, wire.KindExit, wire.Exit{}) != nil {
			_ = c.stream.Reset()
			return
		}
		_ = c.stream.Close()
		return
	}
	p, exit := prepare(start.Command, c.uid)
	if exit.Fault == wire.FaultNone {
		p.Terminal = start.Terminal
		shell := c.ahead.begin(c.starting, p)
		exit = c.run(start, p, shell)
		c.ahead.ended()
		defer func() {
			runtime.Gosched() // the answer goes first
			c.release()
			if start.Ahead {
				c.ahead.next(p)
			}
		}()
	}
	exit.Message = cutText(exit.Message)
	if err := wire.WriteMessage(c.stream, wire.KindExit, exit); err != nil {
		_ = c.stream.Reset()
		return
	}
	_ = c.stream.Close()
}

// run runs the command to its end, in the waiting shell if there is one.
func (c *command) run(start wire.Start, p spawn.Process, shell *waitingShell) wire.Exit {
	if shell != nil {
		err := shell.hand(c.starting, p, start.Stdin)
		if err == nil {
			return c.runAhead(start, shell)
		}
		shell.discard(c.tree)
		if _, late := errors.AsType[*spawn.Error](err); late { // it may have begun
			c.release = func() {}
			return startFault(start.Command, err)
		} // else the shell had ended
	}
	io, err := c.open(start)
	if err != nil {
		c.release = func() {}
		return startFault(start.Command, err)
	}
	c.release = io.close
	p.Files = io.child[:]
	root, err := c.tree.start(c.starting, p)
	io.closeChildEnds()
	if err != nil {
		return startFault(start.Command, err)
	}
	c.started(root, io)
	return c.finish(io, root, start)
}

// gaveUp is the exit code of a waiting shell that could not begin its command; a command may exit
// with it, too.
const gaveUp = 126

func (c *command) runAhead(start wire.Start, shell *waitingShell) wire.Exit {
	c.release = shell.close
	c.started(shell.root, shell.pipes)
	exit := c.finish(shell.pipes, shell.root, start)
	if exit.Code == gaveUp {
		if err := shell.failure(); err != nil {
			return startFault(start.Command, err)
		}
	}
	exit.Ahead = true
	return exit
}

// finish carries the command's input and output until it has ended, and returns its Exit.
func (c *command) finish(io *pipes, root *rootProcess, start wire.Start) wire.Exit {
	exit := c.carry(io, root, start)
	if root.status.Signaled() {
		exit.Signal = int(root.status.Signal())
	} else {
		exit.Code = root.status.ExitStatus()
	}
	return exit
}

// open makes the command's standard files.
func (c *command) open(start wire.Start) (*pipes, error) {
	if start.Terminal {
		return openTerminal(start.Stdin, start.ConsoleSize, c.uid, c.devNull)
	}
	return openPipes(start.Stdin, c.devNull)
}

// carry carries the command's input and output until it has ended with all that it started. The
// Exit says what was cut, and what was ended.
func (c *command) carry(p *pipes, root *rootProcess, start wire.Start) (exit wire.Exit) {
	if start.Stdin {
		go c.feed(p)
	} else {
		go c.watch()
	}
	var outputs sync.WaitGroup
	var cut [2]bool
	for i, kind := range []wire.Kind{wire.KindStdout, wire.KindStderr} {
		if p.outputs[i] != nil {
			outputs.Go(func() { cut[i] = c.forward(p.outputs[i], kind, start.MaxOutput) })
		}
	}
	<-root.exited
	select {
	case <-c.hurry:
	default:
		exit.InTime = true
	}
	exit.Leftovers, exit.MoreLeftovers = c.tree.endLeftovers(root, p.outputs[:], c.hurry)
	if err := c.tree.sweep(root); err != nil {
		// The container cannot be trusted to be clean any more; the service replaces it when
		// its agent is gone.
		os.Exit(1)
	}
	// All writers are gone. A reader still waits only if an end of its pipe was passed on to
	// another command.
	p.stopWaiting()
	outputs.Wait()
	exit.Truncated = cut[0] || cut[1]
	return exit
}

// feed copies the stream to the command's stdin. A reset stream means that the service no longer
// waits for the command.
func (c *command) feed(p *pipes) {
	_, err := io.CopyBuffer(onlyWriter{p.stdin}, onlyReader{c.stream}, make([]byte, 32<<10))
	p.endStdin()
	if errors.Is(err, yamux.ErrStreamReset) {
		c.abandon()
	} else if err != nil {
		// The command closed its stdin. What still comes is dropped, so that the sender is not
		// blocked, and a reset is still seen.
		c.watch()
	}
}

// watch reads and drops what comes on the stream, and ends the command when the stream is reset.
func (c *command) watch() {
	if _, err := io.Copy(io.Discard, onlyReader{c.stream}); err != nil {
		c.abandon()
	}
}

// forward sends one output as frames, at most limit bytes of it (0: all), and reads the rest
// without sending it.
func (c *command) forward(from *output, kind wire.Kind, limit int64) (truncated bool) {
	if limit == 0 {
		limit = math.MaxInt64
	}
	buffer := smallBuffers.Get().(*[]byte)
	pool := &smallBuffers
	defer func() { pool.Put(buffer) }()
	seen := 0
	for {
		n, err := from.Read((*buffer)[wire.HeaderSize:])
		full := wire.HeaderSize+n == len(*buffer)
		if int64(n) > limit {
			truncated = true
			n = int(limit)
		}
		if n > 0 {
			limit -= int64(n)
			if !c.send(kind, (*buffer)[:wire.HeaderSize+n]) {
				// The stream has gone. watch ends the command; its pipes must not block meanwhile.
				limit = 0
			}
		}
		if err != nil {
			return truncated
		}
		if seen += n; full && pool == &smallBuffers && seen >= bulkThreshold {
			pool.Put(buffer)
			pool = &largeBuffers
			buffer = pool.Get().(*[]byte)
			from.readInBulk()
		}
	}
}

// send writes one frame and reports whether it could. The frame has room for its header before the
// payload.
func (c *command) send(kind wire.Kind, frame []byte) bool {
	if len(frame) > spoolThreshold {
		if spooled := c.spool.put(kind, frame[wire.HeaderSize:]); spooled != nil {
			c.sending.Lock()
			defer c.sending.Unlock()
			_, err := c.stream.Write(spooled)
			return err == nil
		}
	}
	h := wire.Header(kind, len(frame)-wire.HeaderSize)
	copy(frame, h[:])
	c.sending.Lock()
	defer c.sending.Unlock()
	_, err := c.stream.Write(frame)
	return err == nil
}

// spoolThreshold is the size in bytes above which a frame of output is worth a slot of the spool.
const spoolThreshold = 16 << 10

// Most commands print little: only one that has printed bulkThreshold bytes, and more at a time
// than a small buffer holds, is read in bulk and with a large one.
const bulkThreshold = 64 << 10

var (
	smallBuffers = bufferPool(8 << 10)
	largeBuffers = bufferPool(wire.HeaderSize + wire.MaxData)
)

func bufferPool(size int) sync.Pool {
	return sync.Pool{New: func() any { b := make([]byte, size); return &b }}
}

// started lets control act on the command, and carries out what was asked for meanwhile.
func (c *command) started(root *rootProcess, p *pipes) {
	c.giveUp()
	c.mu.Lock()
	c.root, c.pipes = root, p
	early := c.early
	c.early = nil
	c.mu.Unlock()
	for _, m := range early {
		c.control(m)
	}
}

// control acts on the command, or keeps the frame until the command has started.
func (c *command) control(m wire.Control) {
	c.mu.Lock()
	root, p := c.root, c.pipes
	if root == nil {
		c.early = keepEarly(c.early, m)
	}
	c.mu.Unlock()
	grace := time.Duration(m.Grace) * time.Millisecond
	if m.Terminate {
		c.hurried.Do(func() { close(c.hurry) })
	}
	switch {
	case root == nil && m.Terminate:
		time.AfterFunc(grace, c.giveUp)
	case root == nil:
	case m.Terminate:
		c.terminate(root, grace)
	case m.Signal > 0:
		c.tree.signal(root, unix.Signal(m.Signal), true)
	case m.Resize != nil && p.terminal != nil:
		_ = resize(p.terminal, m.Resize) // fails when the command has ended
	}
}

func (c *command) abandon() { c.control(wire.Control{Terminate: true}) } // nobody waits for it any more

// terminate sends SIGTERM to the whole tree and, after the grace period, SIGKILL to the root; sweep
// kills the rest after it.
func (c *command) terminate(root *rootProcess, grace time.Duration) {
	if grace > 0 {
		c.tree.signalTree(root, unix.SIGTERM)
	}
	time.AfterFunc(grace, func() { c.tree.signal(root, unix.SIGKILL, false) })
}

// maxText bounds the Message of an Exit, in bytes: as JSON, which may take six bytes for one, it
// still fits into a frame.
const maxText = 2 << 10

// cutText shortens a text to maxText bytes.
func cutText(text string) string {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	return text
}

func startFault(start launch.Command, err error) wire.Exit {
	exit := wire.Exit{Code: 126, Fault: wire.FaultAgent, Message: err.Error()}
	var failed *spawn.Error
	if !errors.As(err, &failed) {
		return exit
	}
	name := "shell"
	if len(start.Args) > 0 {
		name = start.Args[0]
	}
	if failed.Errno == syscall.ETIME { // whatever stage it had reached
		exit.Fault, exit.Message = wire.FaultCommand,
			fmt.Sprintf(
				"%s: it did not start within %v: another process stopped it, or the machine is too busy",
				name, startLimit)
		return exit
	}
	switch failed.Stage {
	case spawn.StageDir:
		exit.Fault, exit.Message = wire.FaultCwd, fmt.Sprintf("%s: %v", start.Cwd, failed.Errno)
	case spawn.StageExec, spawn.StageSearch:
		exit.Fault = wire.FaultCommand
		exit.Message = fmt.Sprintf("%s: %v", name, failed.Errno)
		if failed.Stage == spawn.StageSearch && !strings.Contains(name, "/") {
			exit.Message = name + ": command not found"
		}
		if failed.Errno == syscall.ENOENT {
			exit.Code = 127
		}
	}
	return exit
}
