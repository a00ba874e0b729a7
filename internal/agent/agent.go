//go:build linux

// Package agent is the program inside a container: it starts commands, feeds them, streams what
// they print, and makes sure that nothing outlives them. One Agent serves one session, over its
// stdin and stdout; when they close, every command ends. The first one is the container's first process, and who
// comes after it is started by a docker exec.
//
// The agent is another user than the commands (package creds), so they can neither signal nor trace it, nor open
// what it has open. Its peer takes what it says for a tenant's input all the same.
//
// agent.go accepts streams; command.go runs one command, with pipes.go or terminal.go for its files, and programs.go
// for where it is; tree.go knows the processes. ahead.go starts the next command's shell, and waiting.go is such a
// shell. init.go is the first process after its session, which sees to it that no command outlives its agent. process.go,
// with log.go, state.go and ready.go, is another mode: it runs one command that needs no session; forward.go is the
// mode that reaches such a command's ports. lasting.go, with lastingstart.go, lastingcommand.go, lastingfollow.go
// and followers.go, is the first process of a container that lasts, whose commands go on without a session; bridge.go is the way to it. output.go and spool.go bring out what a command prints, wait.go waits for
// who has ended, written.go says what the root filesystem has taken, oom.go sees to who goes first without memory, and accesstimes.go says what the mounts are.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
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
	uid     uint32 // who commands run as
	ahead   *ahead

	mu       sync.Mutex
	commands map[uint32]*command
	// early holds control frames that overtook the start of their command.
	early map[uint32][]wire.Control
	last  uint32 // the newest command's stream id
}

// Serve is the agent's whole life. It has to be called on the process's first thread, by a goroutine
// that is locked to it, so that commands are started on others (see processTree). It takes over stdin and stdout and returns when they close or
// break, after it has killed every other process of the container except the first. The caller
// should exit then, and the first process rest if there was no error. Commands run as the user uid; score may be nil.
func Serve(uid uint32, score *OOMScore) (err error) {
	debug.SetGCPercent(50)
	// Of two threads each would wake the other for every step of a command, which in gVisor costs more than the step.
	// What waits in the kernel for long says so (spawn.Block) or is in the poller.
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
	a := &Agent{uid: uid, commands: map[uint32]*command{}, early: map[uint32][]wire.Control{}, tree: newProcessTree(score)}
	if a.devNull, err = unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("cannot open %s: %w", os.DevNull, err)
	}
	a.ahead = newAhead(a.tree, a.devNull, uid, aheadBuiltin, os.Environ())
	if a.spool, err = openSpool(wire.SpoolPath); err != nil {
		return err
	}
	first := os.Getpid() == 1 // with whose end all ends
	if !first {
		if err := a.spool.begin(func() error { return unix.Kill(1, unix.SIGUSR1) }); err != nil {
			return err
		}
	}
	defer func() {
		// What cannot be ended here ends with the container: the first process sees that its end was not confirmed.
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
	// Without its control stream nothing could be killed any more, so either end is the end.
	ended := make(chan error, 2)
	control, err := mux.AcceptStream()
	if err != nil {
		return sessionError(err)
	}
	go func() { ended <- a.control(control) }()
	go func() { ended <- a.accept(mux) }()
	return sessionError(<-ended)
}

// greet answers the service's Hello. Docker drops what the first process prints before the service is attached, which
// it is when a word of its comes.
func greet(conn io.ReadWriter) error {
	if err := wire.ReadMessage(conn, wire.KindHello, &wire.Hello{}); err != nil {
		return err
	}
	return wire.WriteMessage(conn, wire.KindHello, wire.Hello{Version: wire.Version})
}

// sessionError leaves out the error that is the usual end: the service has gone.
func sessionError(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("session broken: %w", err)
}

// harden keeps other processes of the same user, and commands that have not been executed yet, from being traced,
// and lets the agent adopt what commands orphan.
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

// newCommand makes the command of a stream, which begins to start.
func (a *Agent) newCommand(stream *yamux.Stream) *command {
	c := &command{tree: a.tree, spool: a.spool, stream: stream, devNull: a.devNull, uid: a.uid, ahead: a.ahead}
	c.starting, c.giveUp = context.WithTimeout(context.Background(), startLimit)
	return c
}

func (a *Agent) add(id uint32, c *command) {
	a.mu.Lock()
	a.commands[id] = c
	a.last = id
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
		if c == nil && m.Stream > a.last && len(a.early) < maxCommands && (len(a.early[m.Stream]) < maxEarly || m.Terminate) {
			a.early[m.Stream] = append(a.early[m.Stream], m)
		}
		a.mu.Unlock()
		if c != nil {
			c.control(m)
		}
	}
}
