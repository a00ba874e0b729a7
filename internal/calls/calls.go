// Package calls describes what becomes of each exec: its events, and counts of the last hour.
package calls

import (
	"syscall"
	"time"
)

// Event describes a stage of an exec.
type Event struct {
	// ID is the same in all events of one exec, and unique within this service.
	ID uint64
	// What is Began, Running or Ended. Exec is filled in as far as the exec has come.
	What string
	// Sandbox is empty if there is no sandbox of that name. Command, Grants and Network are what
	// the caller wrote, cut.
	Sandbox, Command, Grants, Network string
	// In is the name of its container, once the call has been decided.
	In string
	Exec
}

// The stages of an exec: it was asked for, its command is being started, and all is over.
const (
	Began   = "began"
	Running = "running"
	Ended   = "ended"
)

// Exec is what became of an exec, and how long its phases took. A phase that it did not reach is 0.
type Exec struct {
	Outcome string // one of Outcomes
	Reason  string // the limit that it used up, for a person; empty for none
	// InContainer reports whether it got a container, Cold whether the container had to be made for
	// it, Pooled whether it came from the pool, Thawed whether it was frozen, and Ahead whether its
	// shell had been started before.
	InContainer, Cold, Pooled, Thawed, Ahead bool
	// ExitCode and Signal belong to a command that has ended.
	ExitCode int
	Signal   syscall.Signal
	// FirstByte is when its first output came; 0 if there was none.
	FirstByte time.Duration
	// Decide is the time to check the call and determine what it may see; Container to find or make
	// its container; Start to hand the command to the agent; Run from then until its end; and Total
	// the time of the whole call.
	Decide, Container, Start, Run, Total time.Duration
}

// Way returns how the exec got its container: cold, pooled, frozen or warm; empty for none.
func (e Exec) Way() string {
	switch {
	case !e.InContainer:
		return ""
	case e.Cold:
		return "cold"
	case e.Pooled:
		return "pooled"
	case e.Thawed:
		return "frozen"
	default:
		return "warm"
	}
}

// The outcomes of an exec.
const (
	OK       = "ok"       // exited with 0
	Failed   = "failed"   // exited with another code, by a signal, or could not be started
	TimedOut = "timedOut" // was ended by its timeout
	Refused  = "refused"  // was not run: the call's fault
	Lost     = "lost"     // its container was lost while it ran
	Canceled = "canceled" // was ended because the caller went, or the service stopped
	Error    = "error"    // could not be run: Docker's fault, or the host's
)

// Outcomes lists all outcomes.
var Outcomes = []string{OK, Failed, TimedOut, Refused, Lost, Canceled, Error}
