//go:build linux

// Package agent is the program inside a container: it starts commands, feeds them, streams what
// they print, and makes sure that nothing outlives them. One Agent serves one session, over its
// stdin and stdout; when they close, every command ends. The first agent is the container's first
// process; later ones are started by docker exec.
//
// The agent runs as another user than the commands (package creds), so they can neither signal nor
// trace it, nor open what it has open. The service treats what the agent says as a tenant's input
// all the same.
//
// agent.go accepts streams; command.go runs one command, with pipes.go or terminal.go for its files
// and programs.go for its program; tree.go keeps track of processes, and leftovers.go of what
// commands leave behind. ahead.go starts the next command's shell, waiting.go is such a shell.
// init.go is the first process after its session: it makes sure that no command outlives its agent.
// process.go, with log.go, state.go and ready.go, is another mode, which runs one command without a
// session; forward.go connects to its ports. offer.go listens in their
// place in another container. persistent.go, with the other persistent*.go and
// followers.go, is the first process of a persistent container, whose commands go on without a
// session; it is in the first process of a durable process, too. bridge.go connects to it, and ports.go
// finds the ports there. output.go and spool.go carry a command's output, wait.go waits
// for children, written.go measures the root filesystem, oom.go has commands killed before the
// agent, accesstimes.go checks mounts, lookup.go has gVisor release what was removed, and
// watched.go has its inotify hear what the service changes.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/libp2p/go-yamux/v5"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// maxCommands bounds the commands that run at a time.
const maxCommands = 1000

// Agent runs the commands of one session.
type Agent struct {
	tree    *processTree
	spool   *spool
	devNull int
	uid     uint32 // the user that commands run as
	ahead   *ahead
	offered *offered

	mu       sync.Mutex
	commands map[uint32]*command
	// early holds control frames that overtook the start of their command.
	early   map[uint32][]wire.Control
	last    uint32          // the newest command's stream id
	missing map[uint32]bool // ids before it that have not come yet
}

// Serve runs the agent for its whole life. It must be called on the process's first thread, by a
// goroutine that is locked to it, so that commands are started on other threads (see processTree).
// It takes over stdin and stdout and returns when they close or break, after it has killed every
// other process of the container except the first. The caller should then exit or, if it is the
// first process and there was no error, go on with RunInit. Commands run as uid; score may be nil.
func Serve(uid uint32, score *OOMScore) (err error) {
	debug.SetGCPercent(50)
	// Two threads would wake each other for every step of a command, which in gVisor costs more
	// than the step. Calls that block in the kernel for long tell the runtime so (spawn.Block) or
	// wait in the poller.
	runtime.GOMAXPROCS(1)
	if unix.Gettid() != os.Getpid() {
		return errors.New("the agent does not run on its first thread")
	}
	conn, err := takeStdio()
	if err != nil {
		return err
	}
	if err := harden(); err != nil {
		return err
	}
	if err := spawn.DefaultSignals(); err != nil {
		return err
	}
	a := &Agent{uid: uid, commands: map[uint32]*command{}, early: map[uint32][]wire.Control{}, offered: newOffered(),
		missing: map[uint32]bool{}, tree: newProcessTree(score)}
	if a.devNull, err = unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("cannot open %s: %w", os.DevNull, err)
	}
	a.ahead = newAhead(a.tree, a.devNull, uid, aheadBuiltin, os.Environ())
	if a.spool, err = openSpool(wire.SpoolPath); err != nil {
		return err
	}
	first := os.Getpid() == 1 // when it ends, so does everything in the container
	if !first {
		if err := a.spool.begin(func() error { return unix.Kill(1, unix.SIGUSR1) }); err != nil {
			return err
		}
	}
	defer func() {
		// What survives this ends with the container: the first process sees that the end was not
		// confirmed.
		endErr := a.tree.end()
		if endErr == nil && !first {
			endErr = a.spool.end()
		}
		err = errors.Join(err, endErr)
	}()
	if err := greet(conn); err != nil {
		return sessionError(err)
	}
	mux, err := yamux.Server(mux.Coalesce(conn, 0), mux.Config(maxCommands+1), nil)
	if err != nil {
		return fmt.Errorf("cannot open the session: %w", err)
	}
	// Without the control stream nothing could be killed any more, so the end of either ends the
	// session.
	ended := make(chan error, 2)
	control, err := mux.AcceptStream()
	if err != nil {
		return sessionError(err)
	}
	go func() { ended <- a.control(control) }()
	go func() { ended <- a.accept(mux) }()
	return sessionError(<-ended)
}

// greet answers the service's Hello. It waits for that, because Docker drops what the first process
// prints before the service is attached.
func greet(conn io.ReadWriter) error {
	if err := wire.ReadMessage(conn, wire.KindHello, &wire.Hello{}); err != nil {
		return err
	}
	return wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: wire.Version})
}

// sessionError returns nil for io.EOF, which is the usual end: the service has gone.
func sessionError(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("session broken: %w", err)
}

// harden keeps other processes of the same user from tracing the agent, and commands before their
// exec, and lets the agent adopt what commands orphan.
func harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become undumpable: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot become a subreaper: %w", err)
	}
	return nil
}

func (a *Agent) accept(mux *yamux.Session) error {
	for {
		stream, err := mux.AcceptStream()
		if err != nil {
			return err
		}
		c := a.newCommand(stream)
		a.add(stream.StreamID(), c)
		go func() {
			defer a.remove(stream.StreamID())
			c.serve()
		}()
	}
}

// newCommand returns the command of a stream. Its startLimit begins now.
func (a *Agent) newCommand(stream *yamux.Stream) *command {
	c := &command{
		tree: a.tree, spool: a.spool, stream: stream, devNull: a.devNull, uid: a.uid,
		ahead: a.ahead, offered: a.offered,
		hurry: make(chan struct{}),
	}
	c.starting, c.giveUp = context.WithTimeout(context.Background(), startLimit)
	return c
}

func (a *Agent) add(id uint32, c *command) {
	a.mu.Lock()
	a.commands[id] = c
	for skipped := max(a.last, 1) + 2; skipped < id && len(a.missing) < maxCommands; skipped += 2 {
		a.missing[skipped] = true // two streams that are opened at the same moment may come in either order
	}
	delete(a.missing, id)
	a.last = max(a.last, id)
	early := a.early[id]
	delete(a.early, id)
	a.mu.Unlock()
	for _, m := range early {
		c.control(m)
	}
}

func (a *Agent) remove(id uint32) {
	a.mu.Lock()
	delete(a.commands, id)
	a.mu.Unlock()
}

// maxEarly bounds the control frames that are kept for a command that has not started yet.
const maxEarly = 16

// keepEarly adds a frame to those that wait for a command's start. What ends the command always has
// a place.
func keepEarly(early []wire.Control, m wire.Control) []wire.Control {
	ends := func(m wire.Control) bool { return m.Terminate || m.Signal == int(unix.SIGKILL) }
	if len(early) < maxEarly || ends(m) && !slices.ContainsFunc(early, ends) {
		early = append(early, m)
	}
	return early
}

func (a *Agent) control(stream io.Reader) error {
	for {
		var m wire.Control
		if err := wire.ReadMessage(stream, wire.KindControl, &m); err != nil {
			return err
		}
		switch {
		case len(m.Release) > 0:
			a.spool.release(m.Release)
			continue
		case m.Ahead:
			a.ahead.prepare()
			continue
		}
		a.mu.Lock()
		c := a.commands[m.Stream]
		if c == nil && (m.Stream > a.last || a.missing[m.Stream]) && len(a.early) < maxCommands {
			a.early[m.Stream] = keepEarly(a.early[m.Stream], m)
		}
		a.mu.Unlock()
		if c != nil {
			c.control(m)
		}
	}
}
