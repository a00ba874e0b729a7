package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// Run starts a command and blocks until it has ended with everything that it left running. If ctx
// ends, the command is ended as after its Timeout, and the error is ctx's cause. The error is
// ErrEnded if nothing of the command was sent, ErrBroken if it is not known how far the command
// came, errdefs.ErrInvalidArgument if the command is too large to be sent, and otherwise what out
// returned. With ErrBroken the result says whether output was Truncated.
func (s *Session) Run(ctx context.Context, c Command, out Output) (Result, error) {
	opened := time.Now()
	stream, err := openStream(ctx, s.mux)
	switch { // nothing of this command has been sent
	case err == nil:
	case ctx.Err() != nil:
		return Result{}, err
	case s.mux.IsClosed():
		return Result{}, ErrEnded
	default:
		return Result{}, s.failure(err)
	}
	defer stream.Close()
	r := &running{session: s, stream: stream, command: c, out: out}
	// From here the command may run, so it has to be ended whatever happens.
	if err := s.begin(stream, c); err != nil {
		_ = stream.Reset()
		if errors.Is(err, syscall.EMSGSIZE) { // the session is as it was
			return Result{}, fmt.Errorf("cannot run the command: %v: %w",
				err, cerrdefs.ErrInvalidArgument)
		}
		return Result{}, s.failure(err)
	}
	begun := time.Now()
	stop := context.AfterFunc(ctx, r.terminate)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go r.limit(ended)
	if c.Stdin != nil {
		go r.feed()
	}
	if c.Signals != nil || c.Resizes != nil {
		go r.relay(ended)
	}
	exit, err := r.read()
	if err != nil {
		_ = stream.Reset()
		if errors.Is(err, yamux.ErrTimeout) {
			s.Close()
			err = errors.New("the agent did not end the command")
		}
		return Result{Truncated: r.isFull()}, s.failure(err)
	}
	if r.outErr != nil {
		return Result{}, r.outErr
	}
	if err := context.Cause(ctx); err != nil && !r.expired.Load() {
		return Result{}, err
	}
	result := NewResult(exit, r.cut, r.expired.Load())
	result.Timing.Start, result.Timing.Run = begun.Sub(opened), time.Since(begun)
	return result, nil
}

// receiveLimit is how long an agent may take to receive a command or a control frame; a live one
// receives it at once.
const receiveLimit = 15 * time.Second

func (s *Session) begin(stream *yamux.Stream, c Command) error {
	if err := stream.SetWriteDeadline(time.Now().Add(receiveLimit)); err != nil {
		return err
	}
	start := wire.Start{
		Command: c.Command, Stdin: c.Stdin != nil, MaxOutput: c.MaxOutput, Ahead: c.Ahead,
	}
	if err := wire.WriteMessage(stream, wire.KindStart, start); err != nil {
		return err
	}
	return stream.SetWriteDeadline(time.Time{})
}

// failure returns err as an error of the session; the caller's own cancellation stays what it is.
func (s *Session) failure(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return broken{err}
}

// broken is ErrBroken with its cause, which is told to operators alone.
type broken struct{ cause error }

func (broken) Error() string        { return ErrBroken.Error() }
func (broken) Is(target error) bool { return target == ErrBroken }

// Cause returns why a session broke, which operators alone may read; nil if err is not ErrBroken.
func Cause(err error) error {
	found, _ := errors.AsType[broken](err)
	return found.cause
}

// running is one command on its stream.
type running struct {
	session *Session
	stream  *yamux.Stream
	command Command
	out     Output

	expired     atomic.Bool
	terminating atomic.Bool
	terminated  atomic.Pointer[time.Time] // when terminate was called
	waited      time.Duration             // for the agent, since terminated

	sent   [2]int64 // bytes of stdout and stderr passed on
	cut    bool     // more than MaxOutput came, although the agent should have cut it
	outErr error    // the error of the receiver of the output
}

// limit ends the command after its timeout.
func (r *running) limit(ended <-chan struct{}) {
	if r.command.TimeoutFrom != nil {
		select {
		case <-r.command.TimeoutFrom:
		case <-ended:
			return
		}
	}
	timer := time.NewTimer(r.command.Timeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		r.expired.Store(true)
		r.terminate()
	case <-ended:
	}
}

// terminate asks the agent to end the command and bounds how long read waits for that.
func (r *running) terminate() {
	if r.terminating.Swap(true) {
		return
	}
	now := time.Now()
	r.terminated.Store(&now)
	_ = r.stream.SetReadDeadline(now.Add(r.endLimit()))
	grace := r.command.Grace.Milliseconds()
	control := wire.Control{Stream: r.stream.StreamID(), Terminate: true, Grace: grace}
	if err := r.session.tell(control); err != nil {
		_ = r.stream.Reset()
	}
}

// terminationSlack is how long the agent may take, on top of the grace, to end a command that it
// was told to end. An agent that takes longer is stopped or hostile, and is removed with its
// container.
const terminationSlack = 15 * time.Second

func (r *running) endLimit() time.Duration { return r.command.Grace + terminationSlack }

// feed copies stdin. It may outlive the command while the reader blocks; the reader's owner
// unblocks it.
func (r *running) feed() {
	_, err := io.Copy(r.stream, r.command.Stdin)
	if err == nil {
		_ = r.stream.CloseWrite()
	}
}

// relay forwards the caller's signals and terminal sizes to the command.
func (r *running) relay(ended <-chan struct{}) {
	signals, resizes := r.command.Signals, r.command.Resizes
	for {
		select {
		case signal, open := <-signals:
			if !open {
				signals = nil
				continue
			}
			_ = r.session.tell(wire.Control{Stream: r.stream.StreamID(), Signal: int(signal)})
		case size, open := <-resizes:
			if !open {
				resizes = nil
				continue
			}
			_ = r.session.tell(wire.Control{Stream: r.stream.StreamID(), Resize: &size})
		case <-ended:
			return
		}
	}
}

// await waits for the agent. Once the command is being ended, all waits together are bounded; time
// in which the receiver of the output is slow does not count.
func (r *running) await(read func() error) error {
	before := time.Now()
	if r.terminating.Load() {
		_ = r.stream.SetReadDeadline(before.Add(r.endLimit() - r.waited))
	}
	err := read()
	if at := r.terminated.Load(); at != nil {
		if at.After(before) {
			before = *at
		}
		r.waited += time.Since(before)
	}
	return err
}

// read passes output on until the Exit.
func (r *running) read() (exit wire.Exit, err error) {
	for {
		var kind wire.Kind
		var length int
		err := r.await(func() (err error) {
			kind, length, err = wire.ReadHeader(r.stream)
			return err
		})
		if err != nil {
			return wire.Exit{}, err
		}
		switch kind {
		case wire.KindStdout, wire.KindStderr:
			err = r.pass(kind, length)
		case wire.KindSpooled:
			err = r.passSpooled(length)
		case wire.KindExit:
			err := r.await(func() error { return wire.DecodeMessage(r.stream, length, &exit) })
			return exit, err
		default:
			err = fmt.Errorf("unexpected frame of kind %d", kind)
		}
		if err != nil {
			return wire.Exit{}, err
		}
	}
}

// pass delivers a frame's output as it arrives: output that is only announced takes no memory.
func (r *running) pass(kind wire.Kind, length int) error {
	for length > 0 {
		buffer := pieces.Get().(*[pieceSize]byte)
		n := 0
		err := r.await(func() (err error) {
			n, err = r.stream.Read(buffer[:min(length, pieceSize)])
			return err
		})
		if n > 0 {
			r.deliver(kind, buffer[:n])
		}
		pieces.Put(buffer)
		if length -= n; err != nil && length > 0 {
			return err
		}
	}
	return nil
}

func (r *running) passSpooled(length int) error {
	var at wire.Spooled
	err := r.await(func() (err error) {
		at, err = wire.ReadSpooled(r.stream, length)
		return err
	})
	if err != nil {
		return err
	}
	buffer := slots.Get().(*[wire.MaxData]byte)
	defer slots.Put(buffer)
	data, err := r.session.spool.read(at, buffer[:])
	if err != nil {
		return err
	}
	r.deliver(at.Kind, data)
	r.session.spool.release(at.Slot)
	return nil
}

// isFull reports whether no more output is passed on, so that some may be missing.
func (r *running) isFull() bool {
	limit := r.command.MaxOutput
	return r.cut || limit > 0 && (r.sent[Stdout] >= limit || r.sent[Stderr] >= limit)
}

func (r *running) deliver(kind wire.Kind, data []byte) {
	which := Stdout
	if kind == wire.KindStderr {
		which = Stderr
	}
	if limit := r.command.MaxOutput; limit > 0 {
		if room := limit - r.sent[which]; int64(len(data)) > room {
			data, r.cut = data[:room], true
		}
	}
	r.sent[which] += int64(len(data))
	if len(data) == 0 || r.outErr != nil {
		return
	}
	if err := r.out(which, data); err != nil {
		r.outErr = err
		r.terminate()
	}
}

// pieceSize is how much of a frame is read at a time.
const pieceSize = 16 << 10

var (
	pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}
	slots  = sync.Pool{New: func() any { return new([wire.MaxData]byte) }}
)
