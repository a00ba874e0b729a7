package persistent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Event is what a command has printed, or its end.
type Event struct {
	// Stream is Stdout for all that comes from a terminal.
	Stream session.Stream
	// Data is valid until the next call of Next.
	Data []byte
	// Lost is how many bytes are missing before Data, because more came while nobody followed than
	// is kept.
	Lost int64
	// End is set in the last event alone, which has nothing else.
	End *End
}

// End is how a command has ended.
type End struct {
	// Code means nothing when Signal is set.
	Code     int
	Signal   syscall.Signal
	TimedOut bool
	// Exhausted is the limit that has ended it; nil for none.
	Exhausted *dockerexec.Exhausted
}

// Reader follows one command.
type Reader struct {
	of        commandHost
	container string // that the command is in
	pid       int
	counts    *counted // nil if the command is not counted
	terminal  bool
	stream    control.Stream
	events    chan Event
	end       error // valid when events is closed
	left      sync.Once
	closed    chan struct{}
	ended     atomic.Bool
}

var (
	errGone = fmt.Errorf(
		"the sandbox was killed or reached its end of life while the call was in flight: %w",
		cerrdefs.ErrUnavailable)
	errLost = fmt.Errorf(
		"the connection to the sandbox's processes is lost; the process goes on: connect to it again: %w",
		cerrdefs.ErrUnavailable)
	errSlow = fmt.Errorf(
		"the reader was too slow and is cut off; the process goes on: connect to it again: %w",
		cerrdefs.ErrResourceExhausted)
)

func newReader(of commandHost, from reply, counts *counted, terminal bool) *Reader {
	r := &Reader{of: of, container: from.container, pid: from.answer.PID, counts: counts,
		terminal: terminal, stream: from.stream, events: make(chan Event),
		closed: make(chan struct{})}
	go r.read()
	return r
}

// PID returns the command's process id in the container.
func (r *Reader) PID() int { return r.pid }

// Terminal reports whether the command has, or had, a terminal.
func (r *Reader) Terminal() bool { return r.terminal }

// Close stops following the command, which goes on.
func (r *Reader) Close() {
	r.left.Do(func() {
		close(r.closed)
		ended := r.ended.Load()
		if ended {
			_ = r.stream.Close() // which can wait
		} else {
			_ = r.stream.Reset()
		}
		r.of.left(r.pid, r.counts, ended)
	})
}

// Next waits for the next event. After the end it returns io.EOF. When ctx ends it returns ctx's
// cause, and nothing is lost. An error of class ResourceExhausted says that the reader was too
// slow; one of class Unavailable, that the sandbox or the connection to it is lost.
func (r *Reader) Next(ctx context.Context) (Event, error) {
	select {
	case e, more := <-r.events:
		if !more {
			return Event{}, r.end
		}
		return e, nil
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
}

// read passes on what comes. Whoever gets an event is done with the previous one, so two buffers
// are enough.
func (r *Reader) read() {
	defer close(r.events)
	var buffers [2][]byte
	var lost int64
	for i := 0; ; i++ {
		e, err := r.event(&buffers[i%2])
		if e, err = r.explained(e, err); errors.Is(err, errLost) {
			err = r.of.whyLost(r.container)
		}
		if err != nil {
			r.end = err
			return
		}
		if e.Data == nil && e.End == nil {
			lost += e.Lost
			i-- // this buffer was not handed out
			continue
		}
		e.Lost, lost = lost, 0
		if e.End != nil {
			r.ended.Store(true)
		}
		select {
		case r.events <- e:
		case <-r.closed:
			r.end = errLost
			return
		}
		if e.End != nil {
			r.end = io.EOF
			return
		}
	}
}

// explained returns the end of a command whose container ran out of memory as what it is, also if
// that ended the container.
func (r *Reader) explained(e Event, err error) (Event, error) {
	select {
	case <-r.closed:
		return e, err // nobody hears it
	default:
	}
	switch killed := e.End != nil &&
		(e.End.Signal == syscall.SIGKILL || e.End.Code == 128+int(syscall.SIGKILL)); {
	case errors.Is(err, errLost):
		if found := r.of.exhausted(r.container); found != nil {
			return Event{End: &End{Signal: syscall.SIGKILL, Exhausted: found}}, nil
		}
	case killed:
		e.End.Exhausted = r.of.killed(r.container)
	}
	return e, err
}

// event reads one frame.
func (r *Reader) event(buffer *[]byte) (Event, error) {
	kind, length, err := wire.ReadHeader(r.stream)
	if err != nil {
		return Event{}, errLost
	}
	switch kind {
	case wire.KindStdout, wire.KindStderr:
		if cap(*buffer) < length {
			*buffer = make([]byte, length)
		}
		e := Event{Stream: session.Stdout, Data: (*buffer)[:length]}
		if kind == wire.KindStderr {
			e.Stream = session.Stderr
		}
		if _, err := io.ReadFull(r.stream, e.Data); err != nil {
			return Event{}, errLost
		}
		return e, nil
	case wire.KindExit:
		var exit wire.Exit
		if wire.DecodeMessage(r.stream, length, &exit) != nil {
			return Event{}, errLost
		}
		return Event{End: &End{Code: exit.Code & 0xff, Signal: syscall.Signal(exit.Signal & 0x7f),
			TimedOut: exit.TimedOut}}, nil
	case wire.KindAnswer:
		var a control.Answer
		switch err := wire.DecodeMessage(r.stream, length, &a); {
		case err != nil:
			return Event{}, errLost
		case a.Fault == control.FaultCut:
			return Event{}, errSlow
		case a.Fault == wire.FaultNone && a.Lost > 0:
			return Event{Lost: a.Lost}, nil
		}
	}
	return Event{}, errLost // a container that says anything else is not to be believed
}
