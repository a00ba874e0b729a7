package persistent

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
)

// beside is the container of a durable process, in which commands run beside it.
type beside struct {
	executor  Executor
	container string
}

// RunBeside runs a call's command in the container of a durable process, and blocks until it has
// ended. It ends with the process, and what it leaves running ends with it. The rest is as for
// Sandbox.Run, but that the command's Env is its whole environment. reaches says whether the process
// has a network.
func (s *Sandboxes) RunBeside(ctx context.Context, container string, reaches bool,
	account quota.Account, c Call, out session.Output) (ended Ended, err error) {
	give, err := s.cfg.Quotas.Take(account, quota.Commands, 1)
	if err != nil {
		return ended, fmt.Errorf("cannot run the command: %w", err)
	}
	defer give()
	if c.Started != nil {
		c.Started(reaches)
	}
	return s.runBeside(ctx, container, c.Command, out)
}

// PrintBeside runs a command of the service's own in the container of a durable process and returns
// what it prints, limit bytes at most. The container's tenant can have it print anything.
func (s *Sandboxes) PrintBeside(ctx context.Context, container string, argv []string,
	timeout time.Duration, limit int) ([]byte, error) {
	var text []byte
	printed := 0
	ended, err := s.runBeside(ctx, container, session.Command{
		Command: launch.Command{Process: specs.Process{Args: argv, Cwd: "/"}}, Timeout: timeout,
	}, func(from session.Stream, data []byte) error {
		if printed += len(data); printed > limit {
			return errors.New("it prints more than it may")
		}
		if from == session.Stdout {
			text = append(text, data...)
		}
		return nil
	})
	if err == nil && (ended.ExitCode != 0 || ended.Signal != 0 || ended.CommandFault != "") {
		err = fmt.Errorf("%.100q has ended with %d, signal %d %s", argv, ended.ExitCode,
			ended.Signal, ended.CommandFault)
	}
	return text, err
}

func (s *Sandboxes) runBeside(ctx context.Context, container string, c session.Command,
	out session.Output) (ended Ended, err error) {
	on := beside{s.cfg.Executor, container}
	err = run(ctx, on, c, out, &ended, func(r control.Request) (*Reader, error) {
		r.Run.EndsAll = true
		got, err := on.ask(ctx, r, nil)
		if err != nil {
			return nil, err
		}
		return newReader(on, got, nil, r.Run.Terminal), nil
	})
	if errors.Is(err, errLost) { // in the words of clients' sandboxes
		err = on.whyLost(container)
	}
	return ended, err
}

// errBesideLost is the error for a command whose process goes on, and errBesideEnded is for one that has
// ended with the process.
var (
	errBesideLost = fmt.Errorf(
		"the connection to the process's container was lost, and the command was ended: %w",
		cerrdefs.ErrUnavailable)
	errBesideEnded = fmt.Errorf(
		"the process has ended, or its container was lost, and the command with it: %w",
		cerrdefs.ErrUnavailable)
)

func (b beside) ask(ctx context.Context, r control.Request, input []byte) (reply, error) {
	if r.Do != control.Input {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, answerLimit, errNoAnswer)
		defer cancel()
	}
	stream, err := b.executor.AskPersistent(ctx, b.container)
	switch {
	case errors.Is(err, life.ErrPaused):
		return reply{}, errs.Conflict("the process is paused with its sandbox: resume that")
	case cerrdefs.IsNotFound(err):
		return reply{}, errBesideEnded
	case err != nil:
		return reply{}, err
	}
	return reply{container: b.container, stream: stream}.send(ctx, r, input,
		func(error) error { return b.whyLost(b.container) })
}

func (b beside) whyLost(string) error {
	if b.executor.PersistentRuns(b.container) {
		return errBesideLost
	}
	return errBesideEnded
}

func (b beside) exhausted(container string) *dockerexec.Exhausted {
	ctx, cancel := context.WithTimeout(context.Background(), besideLimit)
	defer cancel()
	return b.executor.PersistentEnd(ctx, container)
}

// besideLimit is how long a command waits to be told what has ended its container.
const besideLimit = 5 * time.Second

// killed says nothing: what was killed for want of memory may have been the process's.
func (b beside) killed(string) *dockerexec.Exhausted { return nil }

func (b beside) left(int, *counted, bool) {}
