package attach

import (
	"io"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Input is a caller's input to a running command: stdin, signals, sizes. None of its methods waits for the command.
type Input struct {
	stdin   *stdin
	signals chan syscall.Signal
	resizes chan specs.Box // holds the latest; nil without a terminal
}

// NewInput is for a command with a terminal or without one. taken gets how many bytes of stdin the
// command has been given since its last call.
func NewInput(terminal bool, taken func(int)) *Input {
	in := &Input{stdin: newStdin(taken), signals: make(chan syscall.Signal, 16)}
	if terminal {
		in.resizes = make(chan specs.Box, 1)
	}
	return in
}

// Stdin is for the command; its Read waits for bytes or the end.
func (in *Input) Stdin() io.Reader { return in.stdin }

// Signals are for the command.
func (in *Input) Signals() <-chan syscall.Signal { return in.signals }

// Resizes are for the command; nil without a terminal.
func (in *Input) Resizes() <-chan specs.Box { return in.resizes }

// Put adds to stdin. More than the Window beyond what was taken is the caller's fault.
func (in *Input) Put(data []byte) error { return in.stdin.put(data) }

// Tell does what an Attachment's does, for a command with one caller.
func (in *Input) Tell(what func(*Input) error) error { return what(in) }

// End ends stdin with io.EOF, or says why nothing more comes. The first end counts.
func (in *Input) End(why error) { in.stdin.end(why) }

// Signal is dropped if more wait already than a command is likely to look at.
func (in *Input) Signal(signal syscall.Signal) {
	select {
	case in.signals <- signal:
	default: // nobody takes them: the command has not started, or has ended
	}
}

// Resize is for a command with a terminal, whose latest size counts. It is for one goroutine at a time.
func (in *Input) Resize(size specs.Box) error {
	if in.resizes == nil {
		return errs.Invalid("resize is for a command with a terminal, and this one was started without tty")
	}
	select {
	case <-in.resizes: // an earlier one that nobody has taken
	default:
	}
	in.resizes <- size
	return nil
}

// kill ends the command with SIGKILL, in the place of other signals if too many wait.
func (in *Input) kill() {
	for {
		select {
		case in.signals <- syscall.SIGKILL:
			return
		default:
		}
		select {
		case <-in.signals:
		default:
		}
	}
}
