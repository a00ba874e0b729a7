// Package control is the protocol between the service and the agent of a persistent container, or
// that of a durable process, in frames of package wire.
//
// That agent is the container's first process: it has the commands, and listens at SocketPath. For
// each connection the service starts another process, a bridge, which hands its stdin and stdout
// over at that socket. So commands need no service. The agent sends a Hello, then both ends speak
// yamux, with the service as the client. Every stream is one Request:
//
//	service to agent:  a Request, and for Input the bytes that it announces
//	agent to service:  an Answer. If it has no fault: for List an Entry for each command, and an empty one at the end; for
//	                   Begin and Follow output as Stdout and Stderr frames, between them Answers that report lost output,
//	                   and at the end an Exit or an Answer with FaultCut
//
// A stream that ends otherwise has broken. That ends nothing but the stream.
package control

import (
	"encoding/json"
	"io"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Version is raised with every change that the other end could not understand: a persistent
// container keeps the agent that it was made with.
const Version = 1

// SocketDir holds the agent's socket. It is a tmpfs that is the agent's alone.
const (
	SocketDir  = "/.daycare/run"
	SocketPath = SocketDir + "/agent"
)

// The bounds of a persistent container.
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
	// End ends a command, what is below it and its session: with SIGTERM and, after GraceMs, with
	// SIGKILL. It is answered at once. An older agent breaks the stream.
	End Verb = "end"
	// Written asks how much the root filesystem has taken. An older agent answers FaultMissing, as
	// for a command.
	Written Verb = "written"
	// Ready starts a shell that waits for the next command, and is answered when the shell waits or
	// cannot. An older agent answers FaultMissing.
	Ready Verb = "ready"
	// MakeMissing makes what is missing in a directory of root's, and gives it to the tenant. An
	// older agent answers FaultMissing.
	MakeMissing Verb = "make"
	// Idle asks whether nothing runs but what belongs to the agent. An older agent answers
	// FaultMissing.
	Idle Verb = "idle"
	// Ports asks at which ports of the loopback programs listen. Ports frames follow: one at once,
	// and another with each change. An older agent answers FaultMissing.
	Ports Verb = "ports"
	// LookUp looks Paths up as the tenant, and has those hear who watch them. An older agent answers
	// FaultMissing, or leaves them unheard.
	LookUp Verb = "lookUp"
	// Rename renames a file as the tenant, if somebody watches files. An older agent answers
	// FaultMissing.
	Rename Verb = "rename"
)

// Request is the first frame of a stream.
type Request struct {
	Do Verb `json:"do"`
	// PID or Tag says which command; a tag means the newest command that has it.
	PID int    `json:"pid,omitempty"`
	Tag string `json:"tag,omitempty"`
	// Process is the id of a durable process, in place of PID and Tag, for Begin, Follow and
	// Signal. What to begin is in its directory (package launch). Its output goes to its log, so
	// nothing follows but its Exit. An older agent breaks the stream of Begin.
	Process string `json:"process,omitempty"`
	// Run is what to begin, under Tag.
	Run *Run `json:"run,omitempty"`
	// Length is how many bytes of input follow.
	Length int `json:"length,omitempty"`
	Signal int `json:"signal,omitempty"`
	// GraceMs is for End, in milliseconds.
	GraceMs int64      `json:"graceMs,omitempty"`
	Size    *specs.Box `json:"size,omitempty"`
	// Make is for MakeMissing.
	Make *Make `json:"make,omitempty"`
	// Paths are for LookUp.
	Paths []string `json:"paths,omitempty"`
	// Modified are those of Paths of whose content is to be heard.
	Modified []string `json:"modified,omitempty"`
	// Others is for LookUp: see wire.Start.
	Others bool `json:"others,omitempty"`
	// Rename is for the verb.
	Rename *wire.Rename `json:"rename,omitempty"`
}

// Make is a directory, or an empty file, of which the first component that is missing is to be
// made.
type Make struct {
	Path string `json:"path"` // absolute and clean
	Dir  bool   `json:"dir,omitempty"`
}

// Run is a command that goes on to its end, whether anybody follows it or not.
type Run struct {
	launch.Command
	// Stdin says that there will be input; without it stdin is /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// Ahead starts a shell for the next command when this one has ended and nothing else runs.
	Ahead bool `json:"ahead,omitempty"`
	// Root runs the command as root, in a container that was made for that.
	Root bool `json:"root,omitempty"`
	// TimeoutMs is after how many milliseconds the command is killed with all that is below it; 0
	// means never.
	TimeoutMs int64 `json:"timeoutMs,omitempty"`
	// Call makes it the command of a call, which is the client that begins it: the command waits for
	// a follower that takes nothing, and when the call leaves before the Exit, it is ended as by
	// End. An older agent cuts such a follower off, and lets the command go on.
	Call bool `json:"call,omitempty"`
	// GraceMs is for that end, in milliseconds.
	GraceMs int64 `json:"graceMs,omitempty"`
	// EndsAll ends what the command leaves of its session when it ends. An older agent lets that go
	// on.
	EndsAll bool `json:"endsAll,omitempty"`
	// Note is for the service's own use, and is returned in lists.
	Note json.RawMessage `json:"note,omitempty"`
}

// The faults of an Answer beside those of a start.
const (
	FaultMissing  wire.Fault = "missing"  // there is no such command
	FaultMany     wire.Fault = "many"     // there are too many already
	FaultTerminal wire.Fault = "terminal" // it has no terminal
	FaultInput    wire.Fault = "input"    // it takes no input, or no more
	FaultCut      wire.Fault = "cut"      // the follower has taken nothing for too long, and gets no more
)

// Answer says what has become of a Request, or of the output that is followed.
type Answer struct {
	PID     int        `json:"pid,omitempty"`
	Fault   wire.Fault `json:"fault,omitempty"`
	Message string     `json:"message,omitempty"`
	// Code is what a shell would report of a command that could not be started. An older agent says
	// 0.
	Code int `json:"code,omitempty"`
	// Lost is how many bytes of output are missing here.
	Lost int64 `json:"lost,omitempty"`
	// Idle is the answer to the verb.
	Idle bool `json:"idle,omitempty"`
	// Renamed is the answer to Rename.
	Renamed *wire.Renamed `json:"renamed,omitempty"`
	// Terminal says for Begin and Follow whether the command has a terminal. An older agent does
	// not say: nil.
	Terminal *bool `json:"terminal,omitempty"`
	// Written is how many bytes the root filesystem takes up beyond the image; 0 if that is not
	// known.
	Written int64 `json:"written,omitempty"`
}

// Entry is a running command. An Entry without a PID is the end of a list.
type Entry struct {
	PID      int             `json:"pid,omitempty"`
	Tag      string          `json:"tag,omitempty"`
	Terminal bool            `json:"terminal,omitempty"`
	Note     json.RawMessage `json:"note,omitempty"`
}

// Stream is the stream of one Request, at the service's end.
type Stream interface {
	io.ReadWriteCloser
	// Reset breaks it off.
	Reset() error
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
}
