// Package ask is what the service says to the agent of a container that lasts, in frames of package wire.
//
// There the container's first process has the commands, and listens at SocketPath. Another one, which the service starts
// each time that it comes, gives its stdin and stdout away at that socket; so commands need no service. The agent
// greets, and then both ends speak yamux, with the service as the client. Every stream is one Request:
//
//	service to agent:  a Request, and for Input the bytes that it announces
//	agent to service:  an Answer. If that has no fault: for List an Entry for each command, and an empty one at the end;
//	                   for Begin and Follow output as Stdout and Stderr frames, between them Answers that tell of output that
//	                   is lost, and at the end an Exit or an Answer with FaultCut
//
// A stream that ends otherwise has broken. That ends nothing but the stream.
package ask

import (
	"encoding/json"
	"io"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Version is raised with every change that the other end could not understand: a container that lasts keeps the agent
// that it was made with.
const Version = 1

// SocketDir holds the agent's socket. It is a tmpfs of the agent's alone.
const (
	SocketDir  = "/.daycare/run"
	SocketPath = SocketDir + "/agent"
)

// The bounds of a container that lasts.
const (
	// MaxCommands is how many commands it runs at a time.
	MaxCommands = 200
	// MaxInput is how many bytes one Request may announce.
	MaxInput = 1 << 20
	// MaxNote is how many bytes a command's Note may have, and MaxTag its tag.
	MaxNote = wire.MaxEntry - 8<<10
	MaxTag  = 256
)

// Verb is what a Request is for.
type Verb string

// The verbs.
const (
	Begin      Verb = "begin"
	Follow     Verb = "follow"
	List       Verb = "list"
	Input      Verb = "input"
	CloseInput Verb = "closeInput"
	Resize     Verb = "resize"
	Signal     Verb = "signal"
	// Written asks what the root filesystem has taken. An older agent answers FaultMissing, as of a command.
	Written Verb = "written"
	// Ready has a shell start that waits for the next command, and is answered when it does or cannot. An older agent answers
	// FaultMissing.
	Ready Verb = "ready"
)

// Request is the first frame of a stream.
type Request struct {
	Do Verb `json:"do"`
	// PID or Tag says which command; a tag means the newest one that has it.
	PID int    `json:"pid,omitempty"`
	Tag string `json:"tag,omitempty"`
	// Run is what to begin, under Tag.
	Run *Run `json:"run,omitempty"`
	// Length is how many bytes of input follow.
	Length int        `json:"length,omitempty"`
	Signal int        `json:"signal,omitempty"`
	Size   *specs.Box `json:"size,omitempty"`
}

// Run is a command that goes on to its end, whoever follows it.
type Run struct {
	launch.Command
	// Stdin says that there will be input; without it stdin is /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// Ahead has a shell start for the next command when this one has ended and nothing else runs.
	Ahead bool `json:"ahead,omitempty"`
	// Root has it run as root, in a container that was made for that.
	Root bool `json:"root,omitempty"`
	// TimeoutMs is after how many milliseconds the command is killed with all that is below it; 0 is never.
	TimeoutMs int64 `json:"timeoutMs,omitempty"`
	// Note is the service's own, and is told back in lists.
	Note json.RawMessage `json:"note,omitempty"`
}

// The faults of an Answer beside those of a start.
const (
	FaultMissing  wire.Fault = "missing"  // there is no such command
	FaultMany     wire.Fault = "many"     // there are too many already
	FaultTerminal wire.Fault = "terminal" // it has no terminal
	FaultInput    wire.Fault = "input"    // it takes no input, or no more
	FaultCut      wire.Fault = "cut"      // who follows has taken nothing for too long, and is told no more
)

// Answer says what has become of a Request, or of what is followed.
type Answer struct {
	PID     int        `json:"pid,omitempty"`
	Fault   wire.Fault `json:"fault,omitempty"`
	Message string     `json:"message,omitempty"`
	// Lost is how many bytes of output are missing here.
	Lost int64 `json:"lost,omitempty"`
	// Written is how many bytes the root filesystem has taken beside the image; 0 where that cannot be told.
	Written int64 `json:"written,omitempty"`
}

// Entry is a command that runs. One without a PID is the end of a list.
type Entry struct {
	PID      int             `json:"pid,omitempty"`
	Tag      string          `json:"tag,omitempty"`
	Terminal bool            `json:"terminal,omitempty"`
	Note     json.RawMessage `json:"note,omitempty"`
}

// Stream is one Request's, at the service's end.
type Stream interface {
	io.ReadWriteCloser
	// Reset breaks it off.
	Reset() error
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
}
