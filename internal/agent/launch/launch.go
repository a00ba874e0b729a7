// Package launch defines what to run (Command), and how the service and the first program of a
// durable process's container, our agent, talk to each other. Until the command begins they have a
// connection (Order). From then on they share a directory, which the service binds to Dir, and the
// container's exit code.
//
//	launch.json    by the service, mode 0400: what to run. The agent removes it, for it holds secrets.
//	state.json     by the agent: first when the command has started, then whenever it has become ready or has
//	               stopped being ready, then when everything has ended
//	process.log    by the agent: stdout and stderr in their order; older parts are process.log.1, .2, ..., and the
//	               first of all is process.log.first
//
// SIGTERM, SIGINT and SIGHUP go to the whole command; before the start they end the agent.
//
// A process may also run in a persistent container, which has the directories of all its user's
// processes below All. Then package control says when it starts and which signals it gets.
//
// The directory belongs to the agent (package creds), and commands cannot open it. What the service
// reads from it comes from a container all the same, and is opened and parsed as a tenant's input.
package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Version is raised with every change that the other end could not understand. A container may be
// older than the service that reads its state.
const Version = 2

// Dir is where the directory is in the container; the other names are files in it.
const (
	Dir       = "/.daycare/process"
	All       = "/.daycare/processes" // in a persistent container, those of its user
	File      = "launch.json"
	StateFile = "state.json"
	LogFile   = "process.log"
)

// MaxSize and MaxStateSize bound launch.json and state.json, in bytes.
const (
	MaxSize      = 14 << 20 // as JSON, a command line of 2 MiB may take six bytes for one
	MaxStateSize = 4 << 10
)

// CodeAgent is the container's exit code when the agent failed before it came to the command.
// Otherwise the code is the command's, 128 plus the number of the signal that ended it, or 126 or
// 127 when it could not be started, as in a shell.
const CodeAgent = 125

// Command is what to run: by a process's first program, or by the agent of a session (wire.Start).
type Command struct {
	// Process has the program with its arguments (Args, looked up in Env's PATH; empty when Shell
	// is set), the whole environment (Env), an absolute path inside the container (Cwd), and
	// whether the command has a pseudo-terminal of ConsoleSize as stdin, stdout and stderr
	// (Terminal). Its other fields are ignored.
	specs.Process
	// Shell is a command line for bash, or for sh where the image has no bash.
	Shell string `json:"shell,omitempty"`
	// Login makes the shell a login shell.
	Login bool `json:"login,omitempty"`
}

// Launch is the content of launch.json: what to run, without a terminal.
type Launch struct {
	Version int `json:"version"`
	Command
	Log Log `json:"log"`
	// Note is a line that the log begins with, for a person; empty for none.
	Note string `json:"note,omitempty"`
	// Ready says how to check that the command is ready for its work; nil means no checks.
	Ready *Ready `json:"ready,omitempty"`
	// In is the persistent container in which it runs, for State; empty for one of its own.
	In string `json:"in,omitempty"`
}

// Ready is a check that the agent repeats. It succeeds if a shell command line, run in the
// command's directory and environment, ends with code 0, or if a TCP port of the container's
// loopback accepts a connection.
type Ready struct {
	Command string `json:"command,omitempty"`
	Port    int    `json:"port,omitempty"`
	// IntervalMs is the time between two checks, and TimeoutMs how long one may take, in
	// milliseconds.
	IntervalMs int64 `json:"intervalMs"`
	TimeoutMs  int64 `json:"timeoutMs"`
}

func (r Ready) validate() error {
	switch {
	case (r.Command != "") == (r.Port != 0):
		return errors.New("either ready.command or ready.port has to be set")
	case r.Port < 0 || r.Port > math.MaxUint16:
		return fmt.Errorf("ready.port %d is no port", r.Port)
	case r.IntervalMs <= 0 || r.TimeoutMs <= 0:
		return fmt.Errorf("ready.intervalMs %d and timeoutMs %d are not both positive",
			r.IntervalMs, r.TimeoutMs)
	}
	return nil
}

// Log bounds the log.
type Log struct {
	// MaxBytes is the most that one file holds, MinLogBytes or more. Lines up to 64 KiB, or half
	// of a smaller MaxBytes, are not cut between two files.
	MaxBytes int64 `json:"maxBytes"`
	// Files is how many older files are kept, from 0 to MaxLogFiles. If it is more than 1, the
	// first file that there was is one of them.
	Files int `json:"files"`
}

// MinLogBytes and MaxLogFiles are the bounds of a Log.
const (
	MinLogBytes = 4 << 10
	MaxLogFiles = 100
)

// FirstLog is the name of the first file of a log that has several.
const FirstLog = LogFile + ".first"

// OldLog is the name of an older file of the log; the newest of them is 1.
func OldLog(n int) string { return fmt.Sprintf("%s.%d", LogFile, n) }

// Parse parses and validates a launch.json. A field that it does not know is an error.
func Parse(data []byte) (Launch, error) {
	var l Launch
	if err := decode(data, MaxSize, &l, true); err != nil {
		return Launch{}, fmt.Errorf("cannot read %s: %w", File, err)
	}
	if err := l.Validate(); err != nil {
		return Launch{}, fmt.Errorf("%s is refused: %w", File, err)
	}
	return l, nil
}

// Validate returns all faults, joined.
func (l Launch) Validate() error {
	var faults []error
	fault := func(is bool, format string, args ...any) {
		if is {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(l.Version != Version, "version %d, but only version %d is understood", l.Version, Version)
	fault((len(l.Args) > 0) == (l.Shell != ""), "either args or shell has to be set")
	fault(l.Login && l.Shell == "", "login needs a shell")
	fault(!path.IsAbs(l.Cwd), "cwd %q is not absolute", l.Cwd)
	fault(l.Log.MaxBytes < MinLogBytes, "a log of %d bytes, fewer than %d", l.Log.MaxBytes,
		MinLogBytes)
	if l.Ready != nil {
		faults = append(faults, l.Ready.validate())
	}
	fault(l.Log.Files < 0 || l.Log.Files > MaxLogFiles, "%d older log files, not 0 to %d",
		l.Log.Files, MaxLogFiles)
	return errors.Join(faults...)
}

// State is the content of state.json: what became of the command.
type State struct {
	Version int `json:"version"`
	// StartedAt is zero when the command was not started.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// PID is that of the command's first process, as the container sees it.
	PID int `json:"pid,omitempty"`
	// Ready is the result of the last check; nil before the first one, and if there are no checks.
	Ready *Readiness `json:"ready,omitempty"`
	// EndedAt is zero while the command runs. The fields that follow mean nothing until then.
	EndedAt time.Time `json:"endedAt,omitzero"`
	// ExitCode means nothing when Signal is set.
	ExitCode int `json:"exitCode"`
	// Signal is the name of the signal that ended the command ("SIGKILL"), or empty.
	Signal string `json:"signal,omitempty"`
	// OutOfMemory says that the command was killed, and that something was because the container
	// had no memory left. Docker may say so too late, or never.
	OutOfMemory bool `json:"outOfMemory,omitempty"`
	// Fault says why the command could not be started, or is empty.
	Fault string `json:"fault,omitempty"`
	// Lost is how many bytes of output could not be written to the log.
	Lost int64 `json:"lost,omitempty"`
	// In is Launch.In.
	In string `json:"in,omitempty"`
}

// Readiness is the result of a check. It is the process's own claim.
type Readiness struct {
	OK bool `json:"ok"`
	// Since is when OK took its value; zero before the first check.
	Since time.Time `json:"since"`
	// Message tells people why the process is not ready.
	Message string `json:"message,omitempty"`
}

// maxFault and maxMessage bound a Fault and a Readiness's Message in bytes: as JSON, which may take
// six bytes for one, the state stays below MaxStateSize.
const (
	maxFault   = 400
	maxMessage = 160
)

// Encode returns the state as JSON, in at most MaxStateSize bytes; longer texts are cut.
func (s State) Encode() []byte {
	s.Version = Version
	s.cutTexts()
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // no field can fail, unless a year has five digits
	}
	return data
}

// ParseState parses a state.json, which is a tenant's input. Fields that a later version may add
// are ignored; a value that is out of range is an error.
func ParseState(data []byte) (State, error) {
	var s State
	if err := decode(data, MaxStateSize, &s, false); err != nil {
		return State{}, fmt.Errorf("cannot read %s: %w", StateFile, err)
	}
	if s.Version < 1 || s.PID < 0 || s.PID > math.MaxInt32 || s.ExitCode < 0 || s.ExitCode > 255 ||
		s.Lost < 0 || !isSignal(s.Signal) ||
		s.Ready != nil && !isYear(s.Ready.Since.UTC().Year()) {
		return State{}, fmt.Errorf("cannot read %s: a value is out of range", StateFile)
	}
	s.cutTexts()
	return s, nil
}

func (s *State) cutTexts() {
	s.Fault = cut(s.Fault, maxFault)
	if s.Ready != nil {
		ready := *s.Ready
		ready.Message = cut(ready.Message, maxMessage)
		s.Ready = &ready
	}
}

func cut(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ToValidUTF8(text, "")
}

// isYear reports whether a time of that year can be written as JSON.
func isYear(year int) bool { return year >= 1 && year <= 9999 }

// isSignal reports whether a name may be a signal's (SIGTERM, SIGRTMIN+3) or is empty.
func isSignal(name string) bool {
	if name == "" {
		return true
	}
	rest, is := strings.CutPrefix(name, "SIG")
	return is && rest != "" && len(rest) < 16 &&
		strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-") == ""
}

func decode(data []byte, limit int, into any, strict bool) error {
	if len(data) > limit {
		return fmt.Errorf("more than %d bytes", limit)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after the JSON object")
	}
	return nil
}
