//go:build linux

package agent

import (
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// keptProcess is a durable process in a persistent container, until it has ended.
type keptProcess struct {
	durable
	started chan struct{} // closed once its state says so
	ended   chan struct{}
	exit    wire.Exit // valid once ended is closed
}

// process does what one stream asks for about a durable process.
func (l *persistent) process(stream io.ReadWriter, r control.Request) error {
	if filepath.Base(r.Process) != r.Process || r.Process == ".." || r.Process == "." {
		return errBroken
	}
	p, fault := l.findProcess(r)
	if p == nil {
		return reply(stream, control.Answer{Fault: fault})
	}
	if r.Do == control.Begin {
		select {
		case <-p.started:
		case <-p.ended:
		}
	}
	if err := reply(stream, control.Answer{}); err != nil {
		if r.Do == control.Begin { // whoever has asked for it does not know that it runs
			p.tell(unix.SIGKILL)
		}
		return err
	}
	switch r.Do {
	case control.Begin, control.Follow:
		select {
		case <-p.ended:
			return wire.WriteMessage(stream, wire.KindExit, p.exit)
		case <-leaving(stream):
			return errBroken
		}
	case control.Signal:
		p.tell(unix.Signal(r.Signal))
	default:
		return errBroken
	}
	return nil
}

// findProcess returns a process that has not ended, or nil and why; Begin starts it.
func (l *persistent) findProcess(r control.Request) (*keptProcess, wire.Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.processes[r.Process]
	switch {
	case r.Do != control.Begin:
		return p, control.FaultMissing
	case p != nil || len(l.processes) >= control.MaxCommands:
		return nil, control.FaultMany
	}
	p = &keptProcess{started: make(chan struct{}), ended: make(chan struct{})}
	p.durable = durable{dir: filepath.Join(launch.All, r.Process), uid: l.uid, tree: l.tree, inside: true,
		signals: make(chan os.Signal, 16), started: func() { close(p.started) }}
	l.processes[r.Process] = p
	go l.run(r.Process, p)
	return p, wire.FaultNone
}

func (l *persistent) run(id string, p *keptProcess) {
	code, _ := p.whole() // its state file says what was wrong
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.processes, id)
	p.exit.Code = code
	close(p.ended)
}

// tell sends a signal, unless too many wait.
func (p *keptProcess) tell(s unix.Signal) {
	select {
	case p.signals <- s:
	default:
	}
}
