//go:build linux

package agent

import (
	"context"
	"errors"
	"time"

	"github.com/libp2p/go-yamux/v5"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// begin starts a command, which the client that asked for it follows.
func (l *persistent) begin(stream *yamux.Stream, r control.Request) error {
	if r.Run == nil || len(r.Tag) > control.MaxTag || len(r.Run.Note) > control.MaxNote {
		return errBroken
	}
	if !l.enter() {
		return reply(stream, control.Answer{Fault: control.FaultMany})
	}
	c, exit := l.start(r)
	if c == nil {
		l.enterDone(nil)
		return reply(stream, control.Answer{Fault: exit.Fault, Message: exit.Message,
			Code: exit.Code})
	}
	f := c.out.join() // before anything is printed, and before it can be found
	l.enterDone(c)
	go func() {
		c.run(time.Duration(r.Run.TimeoutMs) * time.Millisecond)
		if r.Run.EndsAll {
			c.tree.killSession(c.root)
		}
		l.ahead.ended()
		if r.Run.Ahead {
			l.ahead.next(c.process)
		}
		l.trim()
	}()
	err := l.follow(stream, c, f)
	if err != nil && r.Run.Call {
		go c.end(time.Duration(r.Run.GraceMs) * time.Millisecond)
	}
	return err
}

// enter takes a place for one more command, if there is one. enterDone gives it back, or to the
// command.
func (l *persistent) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	running := l.starting
	for _, c := range l.commands {
		if c.runs() {
			running++
		}
	}
	if running >= control.MaxCommands {
		return false
	}
	l.starting++
	return true
}

func (l *persistent) enterDone(c *persistentCommand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starting--
	if c != nil {
		l.begun++
		c.began = l.begun
		l.commands[c.root.pid] = c // in place of an ended one that had the same pid
	}
}

func (l *persistent) start(r control.Request) (*persistentCommand, wire.Exit) {
	uid := l.uid
	if r.Run.Root {
		if uid = 0; !l.root {
			return nil, wire.Exit{Fault: wire.FaultCommand,
				Message: "this container runs no commands as root"}
		}
	}
	p, exit := prepare(r.Run.Command, uid)
	if exit.Fault != wire.FaultNone {
		return nil, exit
	}
	p.Terminal, p.GiveOrphans = r.Run.Terminal, true
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	root, files, err := l.startProcess(ctx, r, p, l.ahead.begin(ctx, p))
	if err != nil {
		l.ahead.ended()
		return nil, startFault(r.Run.Command, err)
	}
	c := &persistentCommand{
		tree: l.tree, root: root, process: p, tag: r.Tag, note: r.Run.Note,
		terminal: r.Run.Terminal, out: newFollowers(r.Run.Call), pipes: files, input: make(chan struct{}, 1),
	}
	c.input <- struct{}{}
	return c, exit
}

// startProcess starts a command's process, or lets the waiting shell become it, if there is one.
func (l *persistent) startProcess(ctx context.Context, r control.Request, p spawn.Process,
	shell *waitingShell) (*rootProcess, *pipes, error) {
	if shell != nil {
		err := shell.handOver(ctx, p, r.Run.Stdin)
		if err == nil {
			_ = unix.Close(shell.socket)
			if !r.Run.Stdin {
				shell.pipes.withoutStdin()
			}
			return shell.root, shell.pipes, nil
		}
		shell.discard(l.tree)
		var failed *spawn.Error
		if errors.As(err, &failed) {
			return nil, nil, err
		} // else the shell had ended
	}
	open := func() (*pipes, error) { return openPipes(r.Run.Stdin, l.devNull) }
	if r.Run.Terminal {
		open = func() (*pipes, error) {
			return openTerminal(true, r.Run.ConsoleSize, l.uid, l.devNull)
		}
	}
	files, err := open()
	if err != nil {
		return nil, nil, err
	}
	p.Files = files.child[:]
	root, err := l.tree.start(ctx, p)
	files.closeChildEnds()
	if err != nil {
		files.close()
		return nil, nil, err
	}
	return root, files, nil
}
