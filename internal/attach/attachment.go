package attach

import (
	"context"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/errs"
)

// Attachment is one caller that follows an Exec: the output that is kept, then what comes. While a caller is
// attached, the command waits for it rather than lose any output.
type Attachment[Result any] struct {
	exec   *Exec[Result]
	news   chan struct{} // holds one when there may be something to take
	buffer []byte        // what Next has returned last

	// The exec's mutex covers these.
	at      int64 // the position of what is to be returned next
	taken   int   // bytes of stdin to be acknowledged to the caller
	refused int   // lines that were returned
	started bool  // was returned
	gone    bool  // closed, or another has taken its place
}

// maxData is how many bytes of output come at once.
const maxData = 64 << 10

// Attach follows the output from a position on, and replaces the caller that is attached already. A position
// beyond the end is the caller's error. The first attachment may send a Window of stdin at once; a later one is
// told by Taken how much, for the command may not have read yet what the earlier sent.
func (e *Exec[Result]) Attach(from int64) (*Attachment[Result], error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if from < 0 || from > e.ring.end {
		return nil, errs.Invalid("offset %d is not from 0 to %d, which is how many bytes the command has printed", from, e.ring.end)
	}
	if e.attached != nil {
		e.attached.gone = true
		e.wake()
	}
	v := &Attachment[Result]{exec: e, news: make(chan struct{}, 1), at: from}
	if e.attachedBefore {
		v.taken = Window - e.pending
	}
	e.attached, e.attachedBefore = v, true
	notify(e.room)
	return v, nil
}

// Close leaves the command to itself. Called again, or when another has taken its place, it does nothing.
func (v *Attachment[Result]) Close() {
	v.exec.mu.Lock()
	defer v.exec.mu.Unlock()
	v.gone = true
	if v.exec.attached == v {
		v.exec.attached = nil
		notify(v.exec.room)
	}
}

// Event is one thing that happened to an Exec; the fields that are not zero say what.
type Event[Result any] struct {
	// Started comes first, with the number of bytes that are Lost: they came after the position from which
	// on the caller wanted to see, and are not kept any more.
	Started bool
	Lost    int64
	// Taken is how many bytes of stdin may be sent beyond those of which that was said before.
	Taken int
	// Refused is what the command could not reach.
	Refused *decisions.Summary
	// Data is output of a Stream. It is valid until the next call.
	Stream dockerexec.Stream
	Data   []byte
	// Ended comes last, with how the command ended.
	Ended  bool
	Result Result
	Err    error
}

// Next returns the next event, and waits for it. The error is ErrReplaced or ctx's cause. Next is for one
// goroutine.
func (v *Attachment[Result]) Next(ctx context.Context) (Event[Result], error) {
	for {
		if ctx.Err() != nil {
			return Event[Result]{}, context.Cause(ctx)
		}
		if ev, ok, err := v.take(); ok || err != nil {
			return ev, err
		}
		select {
		case <-v.news:
		case <-ctx.Done():
		}
	}
}

func (v *Attachment[Result]) take() (ev Event[Result], ok bool, err error) {
	e := v.exec
	e.mu.Lock()
	defer e.mu.Unlock()
	ended := !e.ended.IsZero()
	switch {
	case v.gone:
		return ev, false, ErrReplaced
	case e.started && !v.started:
		v.started = true
		ev.Started, ev.Lost = true, max(0, e.ring.start()-v.at)
	case v.taken > 0 && e.started && !ended:
		ev.Taken, v.taken = v.taken, 0
	case v.refused < len(e.refused):
		line := e.refused[v.refused]
		ev.Refused = &line
		v.refused++
	case v.at < e.ring.end:
		stream, data, from := e.ring.read(v.at, maxData)
		v.buffer = append(v.buffer[:0], data...)
		ev.Stream, ev.Data = stream, v.buffer
		v.at = from + int64(len(data))
		notify(e.room)
	case ended:
		ev.Ended, ev.Result, ev.Err = true, e.result, e.err
	default:
		return ev, false, nil
	}
	return ev, true, nil
}

// Put adds to stdin, as Tell does the rest.
func (v *Attachment[Result]) Put(data []byte) error {
	return v.Tell(func(in *Input) error {
		if !v.exec.command.Stdin {
			v.taken += len(data) // nobody reads it
			v.exec.wake()
			return nil
		}
		err := in.Put(data)
		if err == nil {
			v.exec.pending += len(data)
		}
		return err
	})
}

// Tell is for what else the caller tells the command. It fails with ErrReplaced when another has taken the place of this one.
func (v *Attachment[Result]) Tell(what func(*Input) error) error {
	v.exec.mu.Lock()
	defer v.exec.mu.Unlock()
	if v.gone {
		return ErrReplaced
	}
	return what(v.exec.Input)
}
