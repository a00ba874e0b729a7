package attach

import (
	"context"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/errs"
)

// Attachment is one caller that follows an Exec: first both ends of the output that are kept, then
// new output. While a caller is attached, the command waits for it rather than lose any output.
type Attachment[Result any] struct {
	exec   *Exec[Result]
	news   chan struct{} // holds one when there may be something to take
	buffer []byte        // what Next has returned last

	// The exec's mutex covers these.
	at      int64 // the position of what is to be returned next
	taken   int   // bytes of stdin to be acknowledged to the caller
	refused int   // how many refused lines were returned
	started bool  // the Started event was returned
	gone    bool  // closed, or another has taken its place
}

// maxData is how many bytes of output one Event has at most.
const maxData = 64 << 10

// Attach follows the output from a position on, and replaces the caller that is attached already. A
// position beyond the end is the caller's error. The first attachment may send a Window of stdin at
// once; Taken tells a later one how much it may send, because the command may not have read yet
// what an earlier one sent.
func (e *Exec[Result]) Attach(from int64) (*Attachment[Result], error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if from < 0 || from > e.ring.end() {
		return nil, errs.Invalid(
			"offset %d is not from 0 to %d, the number of bytes that the command has printed", from,
			e.ring.end())
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

// Close detaches the caller; the command goes on. If it is called again, or another has taken its
// place, it does nothing.
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
	// Started comes first.
	Started bool
	// Lost is how many bytes of output are not kept any more at this place.
	Lost int64
	// Taken is how many more bytes of stdin may be sent, beyond those that earlier events allowed.
	Taken int
	// Refused is something that the command could not reach.
	Refused *decisions.Summary
	// Data is output of a Stream. It is valid until the next call.
	Stream session.Stream
	Data   []byte
	// Ended comes last, with how the command ended.
	Ended  bool
	Result Result
	Err    error
}

// Next waits for the next event and returns it. The error is ErrReplaced or ctx's cause. Only one
// goroutine may call Next.
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
		v.started, ev.Started = true, true
	case v.taken > 0 && e.started && !ended:
		ev.Taken, v.taken = v.taken, 0
	case v.refused < len(e.refused):
		line := e.refused[v.refused]
		ev.Refused = &line
		v.refused++
	case v.at < e.ring.kept(v.at):
		kept := e.ring.kept(v.at)
		ev.Lost, v.at = kept-v.at, kept
	case v.at < e.ring.end():
		stream, data := e.ring.read(v.at, maxData)
		v.buffer = append(v.buffer[:0], data...)
		ev.Stream, ev.Data = stream, v.buffer
		v.at += int64(len(data))
		notify(e.room)
	case ended:
		ev.Ended, ev.Result, ev.Err = true, e.result, e.err
	default:
		return ev, false, nil
	}
	return ev, true, nil
}

// Put adds to stdin. It fails as Tell does.
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

// Tell passes other input on to the command. It fails with ErrReplaced when another attachment has
// taken the place of this one.
func (v *Attachment[Result]) Tell(what func(*Input) error) error {
	v.exec.mu.Lock()
	defer v.exec.mu.Unlock()
	if v.gone {
		return ErrReplaced
	}
	return what(v.exec.Input)
}
