package attach

import (
	"context"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// Exec is a command that goes on when its caller's connection is lost.
type Exec[Result any] struct {
	// ID cannot be guessed.
	ID string
	// Input is what goes in to the command.
	Input   *Input
	command Command
	begun   time.Time
	done    chan struct{} // closed at the end
	room    chan struct{} // holds one when Output may go on
	give    func()        // gives its place back

	mu             sync.Mutex // covers the rest
	started        bool
	ending         bool // Output waits for nobody any more
	ring           ring
	refused        []decisions.Summary
	attached       *Attachment[Result] // the caller who is attached; nil for none
	attachedBefore bool                // a caller was attached before
	pending        int                 // bytes of stdin that came and were not acknowledged
	ended          time.Time
	result         Result
	err            error
}

func newExec[Result any](id string, c Command) *Exec[Result] {
	e := &Exec[Result]{ID: id, command: c, begun: time.Now(), done: make(chan struct{}),
		room: make(chan struct{}, 1)}
	e.Input = NewInput(c.Terminal, e.taken)
	return e
}

// Started, Refused, Output and End are for the function that runs the command.

// Started says that the command is about to start.
func (e *Exec[Result]) Started() { e.change(func() { e.started = true }) }

// Refused says what the command could not reach.
func (e *Exec[Result]) Refused(line decisions.Summary) {
	e.change(func() { e.refused = append(e.refused, line) })
}

// Output keeps what the command has printed. It waits for the caller that is attached, if there is
// one, unless the command is to end; the error is ctx's cause.
func (e *Exec[Result]) Output(ctx context.Context, stream session.Stream, data []byte) error {
	for !e.print(stream, data) {
		select {
		case <-e.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (e *Exec[Result]) print(stream session.Stream, data []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.attached != nil && !e.ending && !e.ring.keeps(e.attached.at) {
		return false
	}
	e.ring.write(stream, data)
	e.wake()
	return true
}

// End says that the command is to end, because its time is up or somebody kills it. An attached
// caller that does not take its output must not keep it from ending.
func (e *Exec[Result]) End() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ending = true
	notify(e.room)
}

// taken says that the command has read n more bytes of stdin.
func (e *Exec[Result]) taken(n int) {
	e.change(func() {
		e.pending -= n
		if e.attached != nil {
			e.attached.taken += n
		}
	})
}

// finish records how the command ended, and reports whether it ever started.
func (e *Exec[Result]) finish(result Result, err error) (started bool) {
	e.change(func() {
		e.ended, e.result, e.err = time.Now(), result, err
		close(e.done)
		started = e.started
	})
	return started
}

// change calls how with e.mu held, and wakes the caller that is attached.
func (e *Exec[Result]) change(how func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	how()
	e.wake()
}

// wake wakes the caller that is attached, if there is one. It never waits; e.mu is held.
func (e *Exec[Result]) wake() {
	if e.attached != nil {
		notify(e.attached.news)
	}
}

// notify sends on a channel with room for one value, unless it is full.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (e *Exec[Result]) hasEnded() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// Kill ends the command with all that it started, and waits for its end; the error is ctx's cause.
// It leaves a command alone that has ended.
func (e *Exec[Result]) Kill(ctx context.Context) error {
	if !e.hasEnded() {
		e.End()
		e.Input.kill()
	}
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Status is the state of a command.
type Status[Result any] struct {
	ID string
	Command
	// Attached says that a caller is attached.
	Attached bool
	// Output is how many bytes the command has printed.
	Output int64
	// Begun is when the command was asked for. Ended is when it ended, or zero while it runs.
	Begun, Ended time.Time
	// Result and Err say how the command ended.
	Result Result
	Err    error
}

// Status returns the command's current state.
func (e *Exec[Result]) Status() Status[Result] {
	e.mu.Lock()
	defer e.mu.Unlock()
	return Status[Result]{
		ID: e.ID, Command: e.command, Attached: e.attached != nil, Output: e.ring.end(),
		Begun: e.begun, Ended: e.ended, Result: e.result, Err: e.err,
	}
}
