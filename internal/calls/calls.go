// Package calls says what becomes of each exec: its events, and counts of the last hour.
package calls

import (
	"syscall"
	"time"
)

// Event tells of a stage of an exec.
type Event struct {
	// ID is the same in all events of one exec, and no other's of this service.
	ID uint64
	// What is Began, Running or Ended. Exec is as far as it has come.
	What string
	// Sandbox is empty where there is none of that name. Command, Grants and Network are what the caller wrote, cut.
	Sandbox, Command, Grants, Network string
	// In is the name of its container, when the call has been decided.
	In string
	Exec
}

// The stages of an exec: it was asked for, its command is being started, and all is over.
const (
	Began   = "began"
	Running = "running"
	Ended   = "ended"
)

// Exec is what became of an exec, and how long its phases took. One that it did not come to is 0.
type Exec struct {
	Outcome string // one of Outcomes
	// InContainer says that it got a container, Cold that this had to be made for it, Pooled that it came from the pool, Thawed
	// that it was frozen, and Ahead that its shell had started before.
	InContainer, Cold, Pooled, Thawed, Ahead bool
	// ExitCode and Signal are those of a command that has ended.
	ExitCode int
	Signal   syscall.Signal
	// FirstByte is when its first output came; 0 where there was none.
	FirstByte time.Duration
	// Decide is the time to check the call and to find out what it may see; Container to find or make its
	// container; Start to hand the command to the agent; Run from then to its end; and Total all of it.
	Decide, Container, Start, Run, Total time.Duration
}

// Way says how the exec came to its container: cold, pooled, frozen or warm; empty for none.
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

// What may become of an exec.
const (
	OK       = "ok"       // exited with 0
	Failed   = "failed"   // exited with another code, by a signal, or could not be started
	TimedOut = "timedOut" // was ended by its timeout
	Refused  = "refused"  // was not run: the call's fault
	Lost     = "lost"     // its container was lost while it ran
	Canceled = "canceled" // was ended because the caller had gone, or the service stopped
	Error    = "error"    // could not be run: Docker's fault, or the host's
)

// Outcomes are all of them.
var Outcomes = []string{OK, Failed, TimedOut, Refused, Lost, Canceled, Error}
