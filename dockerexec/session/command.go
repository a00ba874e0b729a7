package session

import (
	"io"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Command is what an agent runs.
type Command struct {
	// Command is the program with its arguments, directory and environment. With a terminal all
	// output is Stdout, and the end of Stdin is the terminal's end-of-file character.
	launch.Command
	// Stdin is read until its end or the command's; nil means /dev/null. It is not closed.
	Stdin io.Reader
	// Signals are sent to the command's process group as they arrive; nil means there are none.
	Signals <-chan syscall.Signal
	// Resizes are the terminal's new sizes as they arrive; nil means there are none.
	Resizes <-chan specs.Box
	// Timeout is how long the command may run. After it, all of its processes get SIGTERM, and
	// SIGKILL after Grace. It must be more than zero.
	Timeout time.Duration
	// TimeoutFrom is closed when Timeout begins; nil means at once.
	TimeoutFrom <-chan struct{}
	// Grace also applies when the call's context ends.
	Grace time.Duration
	// MaxOutput is how many bytes of each of stdout and stderr are passed on; 0 means all.
	MaxOutput int64
	// Ahead lets the agent run the command in a shell that waits, and start the next one after it.
	Ahead bool
}

// Stream is one of a command's two outputs.
type Stream int

// The streams.
const (
	Stdout Stream = iota
	Stderr
)

// Output receives what a command prints, in the order in which it was read. It is called by one
// goroutine and must not keep the bytes; while it blocks, the command blocks. Its error ends the
// command and is what the call returns.
type Output func(stream Stream, data []byte) error

// Result is how a command ended.
type Result struct {
	// ExitCode is the command's own, or what a shell would report if the command could not be
	// started; it means nothing when Signal is set.
	ExitCode int
	// Signal is the signal that ended the command, or 0.
	Signal syscall.Signal
	// TimedOut says that the timeout had passed.
	TimedOut bool
	// Truncated says that output beyond MaxOutput was dropped.
	Truncated bool
	// CwdFault and CommandFault tell the caller why the command could not be started.
	CwdFault     string
	CommandFault string
	// Leftovers are the command lines of what the command had left running, and was ended: at most
	// wire.MaxLeftovers of up to wire.MaxLeftover bytes. MoreLeftovers is how many there were
	// besides.
	Leftovers     []string
	MoreLeftovers int
	// Ahead says that the command's shell had been started ahead.
	Ahead bool
	// Timing is known only for a command that has ended.
	Timing Timing
}

// Timing says how long it took to hand a command to its agent, and from then to its end.
type Timing struct{ Start, Run time.Duration }

// NewResult returns what an agent says of a command's end; cut and expired are what its caller knows.
// It trusts an agent, within bounds, in what could hurt only its own tenant.
func NewResult(exit wire.Exit, cut, expired bool) Result {
	r := Result{
		ExitCode:  exit.Code & 0xff,
		Signal:    syscall.Signal(exit.Signal & 0x7f),
		TimedOut:  expired && !exit.InTime,
		Truncated: exit.Truncated || cut,
		Ahead:     exit.Ahead,
	}
	message := exit.Message
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	for _, line := range exit.Leftovers[:min(len(exit.Leftovers), wire.MaxLeftovers)] {
		r.Leftovers = append(r.Leftovers, printable(line[:min(len(line), wire.MaxLeftover)]))
	}
	r.MoreLeftovers = min(max(exit.MoreLeftovers, 0), maxMoreLeftovers)
	switch exit.Fault {
	case wire.FaultNone:
	case wire.FaultCwd:
		r.CwdFault = message
	default:
		r.CommandFault = message
	}
	return r
}

// maxMessage bounds, in bytes, why a command could not be started.
const maxMessage = 4 << 10

// maxMoreLeftovers is more than any container's limit on processes.
const maxMoreLeftovers = 1 << 22

// printable replaces by blanks what could do anything to a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
