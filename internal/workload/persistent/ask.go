package persistent

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/errs"
)

// answerLimit is how long the container may take to answer a request that has nothing to wait for.
const answerLimit = 30 * time.Second

// reply is an answer without a fault, and the stream on which more may follow.
type reply struct {
	container string // that has answered
	stream    control.Stream
	answer    control.Answer
}

// ask sends a request and returns its reply.
func (b *Sandbox) ask(ctx context.Context, r control.Request, input []byte) (_ reply, err error) {
	// Without answerLimit, as it may have to be started first:
	if _, err := b.running(ctx); err != nil {
		return reply{}, err
	}
	if r.Do != control.Input {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, answerLimit, errNoAnswer)
		defer cancel()
	}
	got, err := inside(ctx, b, func(container string) (reply, error) {
		stream, err := b.entry.of.cfg.Executor.AskPersistent(ctx, container)
		if err != nil && !errors.Is(err, life.ErrPaused) {
			err = b.lost(ctx, container, err)
		}
		return reply{container: container, stream: stream}, err
	})
	if err != nil {
		return reply{}, err
	}
	return got.send(ctx, r, input,
		func(err error) error { return b.lost(ctx, got.container, err) })
}

// send sends a request on a stream, and returns the reply. lost returns the error for a stream that
// has broken.
func (got reply) send(ctx context.Context, r control.Request, input []byte,
	lost func(error) error) (_ reply, err error) {
	defer func() {
		if err != nil {
			_ = got.stream.Reset()
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = got.stream.SetDeadline(time.Unix(1, 0)) })
	r.Length = len(input)
	if err = wire.WriteMessage(got.stream, wire.KindRequest, r); err == nil && len(input) > 0 {
		_, err = got.stream.Write(input)
	}
	if err == nil {
		err = wire.ReadMessage(got.stream, wire.KindAnswer, &got.answer)
	}
	switch late := !stop(); {
	case errors.Is(err, syscall.EMSGSIZE):
		return reply{}, errs.Invalid("cannot ask the sandbox: %v", err)
	case late:
		return reply{}, context.Cause(ctx)
	case err != nil:
		return reply{}, lost(err)
	}
	return got, faultOf(got.answer)
}

var errNoAnswer = fmt.Errorf("the sandbox does not answer: %w", cerrdefs.ErrUnavailable)

// lost returns the error for a broken connection to the commands in a container of the sandbox.
func (b *Sandbox) lost(ctx context.Context, container string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	why := b.whyLost(container)
	if errors.Is(why, errLost) {
		b.entry.of.cfg.Log.Warn().Str("error", fmt.Sprintf("%.500s", err)).
			Str("sandbox", b.entry.id).Msg("a call has lost its connection into a sandbox")
	}
	return why
}

// whyLost returns the error for a connection to a container that has broken: it ends no command,
// unless the sandbox has ended. One that is being created counts as gone, too, but nobody has
// killed it.
func (b *Sandbox) whyLost(container string) error {
	if found := b.entry.whyEnded(container); found != nil {
		return *found
	}
	b.entry.mu.Lock()
	defer b.entry.mu.Unlock()
	switch {
	case b.entry.gone && b.entry.record.Made:
		return errGone
	case b.entry.state() == StateEnded:
		return errEnded
	}
	return errLost
}

// faultOf returns the error for what went wrong inside. The container's own words are never all of
// its text.
func faultOf(a control.Answer) error {
	message := fmt.Sprintf("%.2000s", a.Message)
	switch a.Fault {
	case wire.FaultNone:
		return nil
	case wire.FaultCwd:
		return startFault{errs.Invalid("cannot run in cwd %q", message), a}
	case wire.FaultCommand:
		return startFault{errs.Invalid("cannot run the command: %q", message), a}
	case control.FaultMissing:
		return errs.NotFound("there is no such process")
	case control.FaultMany:
		return fmt.Errorf(
			"the sandbox already runs %d commands, the most that it may, or one of them has too many followers: %w",
			control.MaxCommands, cerrdefs.ErrResourceExhausted)
	case control.FaultTerminal:
		return errs.Invalid("the process has no terminal")
	case control.FaultInput:
		return errs.Invalid("the process takes no input, or no more")
	}
	return fmt.Errorf("the sandbox could not do it: %q", message)
}

// act sends a request whose answer says no more than that it was done.
func (b *Sandbox) act(ctx context.Context, which Selector, r control.Request, input []byte) error {
	return act(ctx, b, which, r, input)
}

// commandHost is where commands run: a sandbox, or the container of a process.
type commandHost interface {
	ask(ctx context.Context, r control.Request, input []byte) (reply, error)
	// whyLost returns the error for a connection to a container that has broken.
	whyLost(container string) error
	// exhausted returns the limit that has ended a container, and killed the one for which programs
	// were killed in it since it was asked last; nil for none.
	exhausted(container string) *dockerexec.Exhausted
	killed(container string) *dockerexec.Exhausted
	// left says that a follower of a command has gone, and whether the command has ended.
	left(pid int, c *counted, ended bool)
}

func (b *Sandbox) exhausted(container string) *dockerexec.Exhausted {
	return b.entry.whyEnded(container)
}

func (b *Sandbox) killed(container string) *dockerexec.Exhausted {
	return b.entry.of.cfg.Executor.PersistentKilled(container)
}

func (b *Sandbox) left(pid int, c *counted, ended bool) { b.entry.left(pid, c, ended) }

func act(ctx context.Context, on commandHost, which Selector, r control.Request, input []byte) error {
	r.PID, r.Tag = which.PID, which.Tag
	got, err := on.ask(ctx, r, input)
	if err == nil {
		_ = got.stream.Close()
	}
	return err
}
