package persistent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/plan"
)

// Call is a call's command, which ends with the call. What it leaves running goes on.
type Call struct {
	// Command has no Env in a sandbox: that is the sandbox's, and Env, of which later ones win.
	session.Command
	Env []map[string]string
	// Started is called once, when the sandbox runs and just before the command starts; nil for
	// none. reaches says whether the sandbox has a network.
	Started func(reaches bool)
}

// Ended is how a call's command has ended.
type Ended struct {
	session.Result
	// Exhausted is the limit that has ended it; nil for none.
	Exhausted *dockerexec.Exhausted
	// Cold says that the sandbox's container was made for the command, and Thawed that it was
	// paused. Again says why the container was made again, and is empty for a first one.
	Cold, Thawed bool
	Again        string
	// Waited is how long the container took.
	Waited time.Duration
}

// endSlack is how long the container may take, on top of the grace, to end a command.
const endSlack = 15 * time.Second

// Run runs a call's command in a registered sandbox, as the facade runs one in a container for its
// grants, and blocks until it has ended. While out blocks, the command does. When ctx ends, so does
// the command, and the error is ctx's cause.
func (b *Sandbox) Run(ctx context.Context, c Call, out session.Output) (Ended, error) {
	ended, err := b.runCall(ctx, c, out)
	for _, of := range []error{errLost, errGone, errEnded} { // in the words of clients' sandboxes
		if errors.Is(err, of) {
			err = fmt.Errorf(
				"sandbox %q lost its container, or was given up, while the call ran: call again, and it goes on from its home: %w",
				b.entry.recorded().box(), cerrdefs.ErrUnavailable)
		}
	}
	return ended, err
}

func (b *Sandbox) runCall(ctx context.Context, c Call, out session.Output) (Ended, error) {
	begun := time.Now()
	defer b.entry.enter()()
	give, err := b.takeCommand()
	if err != nil {
		return Ended{}, fmt.Errorf("cannot run the command: %w", err)
	}
	ended, _, err := b.wake(ctx)
	if err != nil {
		give()
		return ended, err
	}
	ended.Waited = time.Since(begun)
	r := b.entry.recorded()
	if c.Started != nil {
		c.Started(r.Reach != nil && r.Reach.Profile != "")
	}
	command := c.Command
	command.Process.Env = plan.Join(append([]map[string]string{r.Env}, c.Env...)...)
	asleep := *b // it must not start the sandbox again for a command that is lost
	asleep.asleep = true
	err = run(ctx, &asleep, command, out, &ended, func(r control.Request) (*Reader, error) {
		return b.begin(ctx, r, give)
	})
	return ended, err
}

// run runs a call's command where commands run, once begin has begun it there.
func run(ctx context.Context, on commandHost, c session.Command, out session.Output, ended *Ended,
	begin func(control.Request) (*Reader, error)) error {
	begun := time.Now()
	which := Selector{Tag: "call-" + rand.Text()} // no other command ever has it
	reader, err := begin(control.Request{Do: control.Begin, Tag: which.Tag, Run: &control.Run{
		Command: c.Command, Stdin: c.Stdin != nil, Call: true, GraceMs: c.Grace.Milliseconds(),
		// Only if the service does not end it:
		TimeoutMs: (c.Timeout + c.Grace + endSlack).Milliseconds(),
	}})
	if fault, is := errors.AsType[startFault](err); is {
		ended.Result = fault.result()
		return nil
	}
	if err != nil {
		return err
	}
	defer reader.Close()
	handed := time.Now()
	t := &turn{of: on, which: which, grace: c.Grace, reader: reader,
		told: make(chan struct{}), over: make(chan struct{})}
	defer close(t.over)
	defer context.AfterFunc(ctx, t.end)()
	defer time.AfterFunc(c.Timeout, func() { t.expired.Store(true); t.end() }).Stop()
	if c.Stdin != nil {
		go t.feed(c.Stdin)
	}
	if c.Signals != nil || c.Resizes != nil {
		go t.relay(c)
	}
	if err := t.read(context.WithoutCancel(ctx), out, ended); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil && !t.expired.Load() {
		return err
	}
	ended.Timing.Start, ended.Timing.Run = handed.Sub(begun), time.Since(handed)
	return nil
}

// wake makes a registered sandbox what its registration says, has it run, and returns its container.
func (b *Sandbox) wake(ctx context.Context) (_ Ended, container string, err error) {
	if err := b.conforms(ctx); err != nil {
		return Ended{}, "", err
	}
	before := b.entry.recorded()
	ended := Ended{Cold: b.entry.hasMoved(), Thawed: before.Paused}
	container, err = b.running(ctx)
	if errors.Is(err, errEnded) { // just now
		b.entry.keepHome()
		container, err = b.running(ctx)
	}
	if now := b.entry.recorded().Moved; now != nil && now != before.Moved {
		ended.Cold, ended.Again = true, now.why()
	}
	return ended, container, err
}

// startFault is the error for a command that could not be started.
type startFault struct {
	error
	answer control.Answer
}

func (f startFault) Unwrap() error { return f.error }

// result returns the fault as a shell would report it.
func (f startFault) result() session.Result {
	return session.NewResult(wire.Exit{Code: f.answer.Code, Fault: f.answer.Fault,
		Message: f.answer.Message}, false, false)
}

// turn is a call's command while it runs.
type turn struct {
	of      commandHost
	which   Selector
	grace   time.Duration
	reader  *Reader
	expired atomic.Bool // its time was up before it had ended
	passing atomic.Bool // output is being passed on, which takes as long as its receiver likes
	ending  sync.Once
	told    chan struct{} // closed when the container has answered that it is to end the command
	over    chan struct{} // closed when the command has ended
}

// timedOut reports whether the command's time was up before it had ended.
func (t *turn) timedOut() bool {
	if !t.expired.Load() {
		return false
	}
	<-t.told // which says whether it had ended by then
	return t.expired.Load()
}

// end ends the command. If the container does not do that in time, the call ends without it.
func (t *turn) end() { t.ending.Do(t.endNow) }

func (t *turn) endNow() {
	const tick = 100 * time.Millisecond
	err := t.tellEnd()
	if cerrdefs.IsNotFound(err) { // it has ended already
		t.expired.Store(false)
	}
	close(t.told)
	switch {
	case cerrdefs.IsNotFound(err):
		return
	case err != nil:
		t.reader.Close()
		return
	}
	for left := t.grace + endSlack; left > 0; {
		select {
		case <-t.over:
			return
		case <-time.After(tick):
		}
		if !t.passing.Load() {
			left -= tick
		}
	}
	t.reader.Close()
}

// tellEnd asks the container to end the command.
func (t *turn) tellEnd() error {
	ctx, cancel := context.WithTimeout(context.Background(), endSlack)
	defer cancel()
	return act(ctx, t.of, t.which, control.Request{Do: control.End,
		GraceMs: t.grace.Milliseconds()}, nil)
}

// feed copies stdin. It may outlive the command while the reader blocks; the reader's owner
// unblocks it.
func (t *turn) feed(stdin io.Reader) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-t.over
		cancel()
	}()
	_, err := io.Copy(input{ctx, t}, stdin)
	if err == nil {
		_ = act(ctx, t.of, t.which, control.Request{Do: control.CloseInput}, nil)
	}
}

// input writes to a command's stdin.
type input struct {
	ctx context.Context //nolint:containedctx // of the copy
	of  *turn
}

func (i input) Write(data []byte) (int, error) {
	if err := feed(i.ctx, i.of.of, i.of.which, data); err != nil {
		return 0, err
	}
	return len(data), nil
}

// relay forwards the caller's signals and terminal sizes to the command.
func (t *turn) relay(c session.Command) {
	ctx := context.Background()
	signals, resizes := c.Signals, c.Resizes
	for {
		select {
		case s, open := <-signals:
			if !open {
				signals = nil
				continue
			}
			_ = signal(ctx, t.of, t.which, s)
		case size, open := <-resizes:
			if !open {
				resizes = nil
				continue
			}
			_ = resize(ctx, t.of, t.which, size)
		case <-t.over:
			return
		}
	}
}

// read passes output on until the command has ended.
func (t *turn) read(ctx context.Context, out session.Output, ended *Ended) error {
	var failed error
	for {
		event, err := t.reader.Next(ctx)
		switch {
		case failed != nil && (err != nil || event.End != nil):
			return failed
		case err != nil:
			return err
		case event.End != nil:
			ended.ExitCode, ended.Signal = event.End.Code, event.End.Signal
			ended.TimedOut = event.End.TimedOut || t.timedOut()
			ended.Exhausted = event.End.Exhausted
			return nil
		case failed != nil || out == nil:
			continue
		}
		ended.Truncated = ended.Truncated || event.Lost > 0
		t.passing.Store(true)
		failed = out(event.Stream, event.Data)
		t.passing.Store(false)
		if failed != nil {
			go t.end()
		}
	}
}
