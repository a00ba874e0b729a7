// Package wire is the protocol between the service and the agent inside a container.
//
// The agent's stdin and stdout are one connection. On it the service first sends a Hello, and the
// agent answers with one; then both ends speak yamux, with the service as the client. The service
// opens the control stream before any other and keeps it; every further stream is one command:
//
//	service to agent:  a Start frame, then the command's stdin as plain bytes; half-close is EOF
//	agent to service:  Stdout and Stderr frames as they come, and one Exit frame at the end
//
// Bytes on this connection pass through the runtime's shim and Docker, some tens of kilobytes
// at a time, which for large outputs costs more than all the rest. Where the service has bound a
// spool file into the container, the agent therefore puts large pieces of output into free slots
// of it and sends a Spooled frame that says where; the service reads the slot and gives it back.
// With no spool, or no free slot, the same bytes go as a frame.
//
// Control frames name a command by its yamux stream id. They have a stream of their own because a
// command that does not read its stdin stops the flow of its own stream, and must be killable then.
//
// The agent has a second mode, which runs no commands but reaches ports. It greets unasked and has
// no control stream; every stream is one TCP connection:
//
//	service to agent:  a Dial frame; then, once Dialed has come, Data frames, and an End frame
//	agent to service:  a Dialed frame, then Data frames, and an End frame
//
// In the first mode the agent also listens in the place of programs elsewhere. That takes one stream
// that begins with a Start that has Offer, as long as that is wanted:
//
//	service to agent:  a Ports frame with all ports, and another one with each change
//	agent to service:  for each, a Ports frame with those at which it listens
//
// and one stream for each connection, which begins with a Start that has Accept. Then both ends have
// changed their parts: once a program has connected, the agent sends a Dial frame.
//
// What arrives from a container is a tenant's input: every frame is bounded before it is read.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/agent/launch"
)

// Version is raised with every change that the other end could not understand, and ForwardVersion
// with those of the second mode: containers of durable processes keep the agent that they were made
// with.
const (
	Version        = 8
	ForwardVersion = 1
)

// Kind is the first byte of a frame.
type Kind byte

// The kinds of frames. The numbers are part of the protocol.
const (
	KindHello   Kind = 1
	KindStart   Kind = 2
	KindStdout  Kind = 3
	KindStderr  Kind = 4
	KindExit    Kind = 5
	KindControl Kind = 6
	KindSpooled Kind = 7
	kindDial    Kind = 8
	kindDialed  Kind = 9
	kindData    Kind = 10
	kindEnd     Kind = 11

	// Of package control.
	KindRequest Kind = 12
	KindAnswer  Kind = 13
	KindEntry   Kind = 14

	KindPorts Kind = 15
)

// HeaderSize is the length of a frame's header: the kind, then the payload's length as three
// bytes, most significant first.
const HeaderSize = 4

// MaxData is the largest payload of a Stdout, Stderr or Data frame, in bytes.
const MaxData = 128<<10 - HeaderSize

// SpoolPath is where the service binds the spool file into a container.
const SpoolPath = "/.daycare/spool"

// SpoolSlots is how many slots the spool file has; each holds up to MaxData bytes, and slot i
// begins at i*SpoolSlotSize. SpoolSize is the size of the whole file: what follows the slots is for
// the container's own use.
const (
	SpoolSlots    = 32
	SpoolSlotSize = 128 << 10
	SpoolSize     = SpoolSlots*SpoolSlotSize + 4<<10
)

// maxStart is the largest payload of a Start or a Request, in bytes. Only the service sends these:
// they carry a command's whole argument list and environment. Linux bounds these at about 2 MiB in
// practice, and JSON takes up to six bytes for each. maxMessage is the largest payload of a JSON
// frame without a bound of its own.
const (
	maxStart   = 14 << 20
	maxMessage = 16 << 10
)

// MaxEntry is the largest payload of an Entry frame, in bytes.
const MaxEntry = 64 << 10

// maxDial is the largest payload of a Dial or Dialed frame, in bytes.
const maxDial = 4 << 10

// Hello is the first frame of either end.
type Hello struct {
	Version int `json:"version"`
}

// Start asks for a command.
type Start struct {
	// Command is what to run. All that it prints to a terminal is Stdout. If the stream carries a
	// terminal's stdin, the end of the stream becomes the terminal's end-of-file character.
	launch.Command
	// Stdin says that the stream carries the command's stdin; without it stdin is /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// MaxOutput is how many bytes each of stdout and stderr may carry; the agent reads on and
	// drops the rest. 0 means no bound.
	MaxOutput int64 `json:"maxOutput,omitempty"`
	// Ahead makes the agent start the next command's shell when this one has ended and nothing else
	// runs.
	Ahead bool `json:"ahead,omitempty"`
	// LookUp asks for no command, but for paths to be looked up as the commands' user, and told to
	// who watches them. The Exit comes when that is done.
	LookUp []string `json:"lookUp,omitempty"`
	// Modified are paths, of those in LookUp, of whose content is to be heard.
	Modified []string `json:"modified,omitempty"`
	// Others says that programs have changed what is in LookUp. What those in this container have
	// changed themselves is not told. An older agent tells it again.
	Others bool `json:"others,omitempty"`
	// Rename asks for no command, but for a file to be renamed. The Exit says what became of it.
	Rename *Rename `json:"rename,omitempty"`
	// Offer asks for no command, but for the agent to listen at ports, and Accept for one connection
	// to those.
	Offer  bool `json:"offer,omitempty"`
	Accept bool `json:"accept,omitempty"`
}

// Rename is a file that is to be renamed as the commands' user, if a program watches files, within a
// directory. Without From, To is about to be replaced elsewhere, and who watches it is to hear of that.
// Without To, it is only asked whether a program watches.
type Rename struct {
	Dir  string `json:"dir"`
	From string `json:"from,omitempty"`
	To   string `json:"to"`
}

// Renamed says whether a program watches files, and whether the file was renamed then.
type Renamed struct {
	Watched bool `json:"watched,omitempty"`
	Done    bool `json:"done,omitempty"`
}

// Fault says which part of a Start could not be carried out.
type Fault string

// The faults. FaultNone means that the command ran.
const (
	FaultNone    Fault = ""
	FaultCwd     Fault = "cwd"
	FaultCommand Fault = "command"
	FaultAgent   Fault = "agent"
)

// Exit is the last frame of a command.
type Exit struct {
	// Code is the exit code, meaningful when Signal is 0 and Fault is none.
	Code int `json:"code"`
	// Signal is the number of the signal that ended the command, or 0.
	Signal int `json:"signal,omitempty"`
	// Truncated says that output beyond MaxOutput was dropped.
	Truncated bool `json:"truncated,omitempty"`
	// Fault and Message say why the command could not be started; Code is then what a shell
	// would have returned: 127 for a program that is not there, 126 for one that cannot run.
	Fault   Fault  `json:"fault,omitempty"`
	Message string `json:"message,omitempty"`
	// Ahead says that the command ran in a shell that had been started ahead of it.
	Ahead bool `json:"ahead,omitempty"`
	// InTime says that the command itself had ended before it was to be terminated: only what it
	// had left was then.
	InTime bool `json:"inTime,omitempty"`
	// Leftovers are the command lines of what the command had left running and the agent has ended,
	// at most MaxLeftovers of up to MaxLeftover bytes each, and MoreLeftovers is how many there
	// were besides.
	Leftovers     []string `json:"leftovers,omitempty"`
	MoreLeftovers int      `json:"moreLeftovers,omitempty"`
	// Renamed answers a Rename.
	Renamed *Renamed `json:"renamed,omitempty"`
	// TimedOut says that the command was killed because its time was up.
	TimedOut bool `json:"timedOut,omitempty"`
}

// The bounds of an Exit's Leftovers: as JSON, which may take six bytes for one, they fit into a
// frame.
const (
	MaxLeftovers = 8
	MaxLeftover  = 200
)

// Control acts on a running command.
type Control struct {
	// Stream is the yamux id of the command's stream.
	Stream uint32 `json:"stream"`
	// Signal is sent to the command's process group. 0 when Terminate or Resize is set.
	Signal int `json:"signal,omitempty"`
	// Terminate sends SIGTERM to everything that the command started, and SIGKILL once Grace
	// milliseconds have passed.
	Terminate bool  `json:"terminate,omitempty"`
	Grace     int64 `json:"graceMs,omitempty"`
	// Resize is the terminal's new size; a command without a terminal ignores it.
	Resize *specs.Box `json:"resize,omitempty"`
	// Release gives back slots of the spool; Stream means nothing then.
	Release []int `json:"release,omitempty"`
	// Ahead makes the agent start a shell for the next command if nothing runs; Stream means
	// nothing then.
	Ahead bool `json:"ahead,omitempty"`
}

// Spooled says where a piece of output is. It is a frame of 9 bytes: the Kind that the output would
// have had as a frame, then the slot and the length, most significant byte first.
type Spooled struct {
	Kind   Kind
	Slot   int
	Length int
}

// spooledSize is the length of a Spooled frame's payload.
const spooledSize = 9

// Encode returns the whole frame.
func (s Spooled) Encode() []byte {
	h := Header(KindSpooled, spooledSize)
	frame := append(h[:], byte(s.Kind))
	frame = binary.BigEndian.AppendUint32(frame, uint32(s.Slot))
	return binary.BigEndian.AppendUint32(frame, uint32(s.Length))
}

// ReadSpooled reads the payload of a Spooled frame and refuses a place that does not exist.
func ReadSpooled(r io.Reader, length int) (Spooled, error) {
	if length != spooledSize {
		return Spooled{}, fmt.Errorf("spooled frame of %d bytes", length)
	}
	var p [spooledSize]byte
	if _, err := io.ReadFull(r, p[:]); err != nil {
		return Spooled{}, fmt.Errorf("frame cut short: %w", err)
	}
	s := Spooled{Kind: Kind(p[0]), Slot: int(binary.BigEndian.Uint32(p[1:])),
		Length: int(binary.BigEndian.Uint32(p[5:]))}
	if (s.Kind != KindStdout && s.Kind != KindStderr) || s.Slot >= SpoolSlots ||
		s.Length > MaxData {
		return Spooled{}, fmt.Errorf("spooled frame of kind %d for slot %d with %d bytes", s.Kind,
			s.Slot, s.Length)
	}
	return s, nil
}

// Header returns the header of a frame, from its kind and the length of its payload.
func Header(kind Kind, length int) [HeaderSize]byte {
	var h [HeaderSize]byte
	binary.BigEndian.PutUint32(h[:], uint32(length))
	h[0] = byte(kind)
	return h
}

// WriteMessage writes one JSON frame with a single Write. The error is syscall.EMSGSIZE, and
// nothing is sent, if the message is larger than its kind may be.
func WriteMessage(w io.Writer, kind Kind, message any) error {
	payload, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("cannot encode a frame of kind %d: %w", kind, err)
	}
	if bound := largest(kind); len(payload) > bound {
		return fmt.Errorf("cannot send a frame of kind %d: %w: %d bytes are more than %d", kind,
			syscall.EMSGSIZE, len(payload), bound)
	}
	h := Header(kind, len(payload))
	_, err = w.Write(append(h[:], payload...))
	return err
}

// ReadHeader reads a frame's header and refuses lengths that its kind cannot have.
func ReadHeader(r io.Reader) (Kind, int, error) {
	var h [HeaderSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, 0, err
	}
	kind := Kind(h[0])
	h[0] = 0
	length := int(binary.BigEndian.Uint32(h[:]))
	bound := largest(kind)
	if bound < 0 {
		return 0, 0, fmt.Errorf("unknown frame of kind %d", kind)
	}
	if length > bound {
		return 0, 0, fmt.Errorf("frame of kind %d with %d bytes, more than %d", kind, length, bound)
	}
	return kind, length, nil
}

// largest returns the largest payload of a kind, in bytes, or -1 if there is no such kind.
func largest(kind Kind) int {
	switch kind {
	case KindStdout, KindStderr, kindData:
		return MaxData
	case KindStart, KindRequest:
		return maxStart
	case KindHello, KindExit, KindControl, KindAnswer:
		return maxMessage
	case KindEntry:
		return MaxEntry
	case kindDial, kindDialed, KindPorts:
		return maxDial
	case KindSpooled:
		return spooledSize
	case kindEnd:
		return 0
	default:
		return -1
	}
}

// ReadMessage reads a JSON frame that has to be of the given kind.
func ReadMessage(r io.Reader, want Kind, message any) error {
	kind, length, err := ReadHeader(r)
	if err != nil {
		return err
	}
	if kind != want {
		return fmt.Errorf("frame of kind %d where kind %d was expected", kind, want)
	}
	return DecodeMessage(r, length, message)
}

// DecodeMessage reads a JSON payload of the given length. It takes memory as bytes arrive, not as
// length announces them.
func DecodeMessage(r io.Reader, length int, message any) error {
	payload, err := io.ReadAll(io.LimitReader(r, int64(length)))
	if err == nil && len(payload) < length {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("frame cut short: %w", err)
	}
	if err := json.Unmarshal(payload, message); err != nil {
		return fmt.Errorf("frame is not what was expected: %w", err)
	}
	return nil
}
