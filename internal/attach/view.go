package attach

import (
	"context"
	"io"
	"syscall"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/errs"
)

// View is one caller's look at an Exec: the output that is kept, then what comes. While somebody looks, the
// command waits for them rather than lose any of it.
type View[Result any] struct {
	exec   *Exec[Result]
	news   chan struct{} // holds one when there may be something to take
	buffer []byte        // what Next has returned last

	// The exec's mutex covers these.
	at      int64 // the position of what is to be returned next
	taken   int   // bytes of stdin that the caller is to be told of
	refused int   // lines that were returned
	started bool  // was returned
	gone    bool  // closed, or another has taken its place
}

// maxPart is how many bytes of output come at once.
const maxPart = 64 << 10

// View begins a look from a position of the output on, and takes the place of who looks already. A position
// beyond the end is the caller's fault. The first look may send a Window of stdin at once; a later one is
// told by Taken how much, for the command may not have read yet what the earlier sent.
func (e *Exec[Result]) View(from int64) (*View[Result], error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if from < 0 || from > e.ring.end {
		return nil, errs.Invalid("offset %d is not from 0 to %d, which is how many bytes the command has printed", from, e.ring.end)
	}
	if e.view != nil {
		e.view.gone = true
		e.wake()
	}
	v := &View[Result]{exec: e, news: make(chan struct{}, 1), at: from}
	if e.viewed {
		v.taken = Window - e.pending
	}
	e.view, e.viewed = v, true
	poke(e.room)
	return v, nil
}

// Close leaves the command to itself. Called again, or when another has taken its place, it does nothing.
func (v *View[Result]) Close() {
	v.exec.mu.Lock()
	defer v.exec.mu.Unlock()
	v.gone = true
	if v.exec.view == v {
		v.exec.view = nil
		poke(v.exec.room)
	}
}

// Part is one thing that a View has to tell; the fields that are not zero say what.
type Part[Result any] struct {
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

// Next returns the next part, and waits for it. The error is ErrTaken or ctx's cause. Next is for one
// goroutine.
func (v *View[Result]) Next(ctx context.Context) (Part[Result], error) {
	for {
		if ctx.Err() != nil {
			return Part[Result]{}, context.Cause(ctx)
		}
		if part, ok, err := v.take(); ok || err != nil {
			return part, err
		}
		select {
		case <-v.news:
		case <-ctx.Done():
		}
	}
}

func (v *View[Result]) take() (part Part[Result], ok bool, err error) {
	e := v.exec
	e.mu.Lock()
	defer e.mu.Unlock()
	ended := !e.ended.IsZero()
	switch {
	case v.gone:
		return part, false, ErrTaken
	case e.started && !v.started:
		v.started = true
		part.Started, part.Lost = true, max(0, e.ring.start()-v.at)
	case v.taken > 0 && e.started && !ended:
		part.Taken, v.taken = v.taken, 0
	case v.refused < len(e.refused):
		line := e.refused[v.refused]
		part.Refused = &line
		v.refused++
	case v.at < e.ring.end:
		stream, data, from := e.ring.read(v.at, maxPart)
		v.buffer = append(v.buffer[:0], data...)
		part.Stream, part.Data = stream, v.buffer
		v.at = from + int64(len(data))
		poke(e.room)
	case ended:
		part.Ended, part.Result, part.Err = true, e.result, e.err
	default:
		return part, false, nil
	}
	return part, true, nil
}

// Put, End, Signal and Resize are what the caller tells the command, as Input has it. They fail with ErrTaken
// when another has taken the place of this one.

// Put adds to stdin.
func (v *View[Result]) Put(data []byte) error {
	return v.tell(func(in *Input) error {
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

// End ends stdin.
func (v *View[Result]) End() error {
	return v.tell(func(in *Input) error { in.End(io.EOF); return nil })
}

// Signal sends a signal to the command's process group.
func (v *View[Result]) Signal(signal syscall.Signal) error {
	return v.tell(func(in *Input) error { in.Signal(signal); return nil })
}

// Resize gives the command's terminal a new size.
func (v *View[Result]) Resize(size dockerexec.Size) error {
	return v.tell(func(in *Input) error { return in.Resize(size) })
}

func (v *View[Result]) tell(what func(*Input) error) error {
	v.exec.mu.Lock()
	defer v.exec.mu.Unlock()
	if v.gone {
		return ErrTaken
	}
	return what(v.exec.Input)
}
