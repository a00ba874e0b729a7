package attach

import (
	"io"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Input is a caller's input to a running command: stdin, signals, terminal sizes. None of its
// methods waits for the command.
type Input struct {
	stdin   *stdin
	signals chan syscall.Signal
	resizes chan specs.Box // holds the latest; nil without a terminal
}

// NewInput returns the Input of a command with a terminal or without one. taken is called with how
// many bytes of stdin the command has been given since the last call.
func NewInput(terminal bool, taken func(int)) *Input {
	in := &Input{stdin: newStdin(taken), signals: make(chan syscall.Signal, 16)}
	if terminal {
		in.resizes = make(chan specs.Box, 1)
	}
	return in
}

// Stdin returns what the command reads; its Read waits for bytes or the end.
func (in *Input) Stdin() io.Reader { return in.stdin }

// Signals returns the signals for the command.
func (in *Input) Signals() <-chan syscall.Signal { return in.signals }

// Resizes returns the terminal sizes for the command; nil without a terminal.
func (in *Input) Resizes() <-chan specs.Box { return in.resizes }

// Put adds to stdin. It is the caller's error to send more than the Window beyond what was taken.
func (in *Input) Put(data []byte) error { return in.stdin.put(data) }

// Tell does what an Attachment's Tell does, for a command with one caller.
func (in *Input) Tell(what func(*Input) error) error { return what(in) }

// End ends stdin with why: io.EOF, or the reason why nothing more comes. The first end counts.
func (in *Input) End(why error) { in.stdin.end(why) }

// Signal sends a signal to the command, or drops it if more wait already than a command is likely
// to look at.
func (in *Input) Signal(signal syscall.Signal) {
	select {
	case in.signals <- signal:
	default: // nobody takes them: the command has not started, or has ended
	}
}

// Resize sets the size of the command's terminal; the latest one counts. Only one goroutine at a
// time may call it.
func (in *Input) Resize(size specs.Box) error {
	if in.resizes == nil {
		return errs.Invalid(
			"cannot resize the terminal: this command has none, because it was started without tty")
	}
	select {
	case <-in.resizes: // an earlier one that nobody has taken
	default:
	}
	in.resizes <- size
	return nil
}

// kill sends SIGKILL to the command, in place of other signals if too many wait.
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
