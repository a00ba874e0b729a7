package sandbox

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/warm"
)

// Request is a command that a caller asks for, as it came.
type Request struct {
	// Command is a shell command line, Argv a program with its arguments: exactly one of them is
	// set.
	Command string
	Argv    []string
	// Login makes the shell a login shell. It needs Command.
	Login bool
	// InSandbox runs the command in the persistent container of the sandbox, with all that the
	// sandbox holds, instead of one for the grants of Confinement, which must be empty then.
	InSandbox bool
	// Process runs the command in the container of the user's process with that id or name, with
	// what the process has; Confinement must be empty then. It is empty for none.
	Process string
	Confinement
	// Cwd is relative to the working directory, or absolute, and in the working directory, /tmp or
	// a further mount; empty is the working directory.
	Cwd string
	// Env and Secrets are added to the environment. Secrets win, and are never logged.
	Env     map[string]string
	Secrets map[string]string
	// Terminal asks for a pseudo-terminal of that size, and Resizes are its new sizes; nil for
	// none. With a terminal, all output is stdout.
	Terminal *specs.Box
	Resizes  <-chan specs.Box
	// Timeout is nil for the default, which with a terminal is the maximum.
	Timeout *time.Duration
	// OnlyIfRunning refuses the command if the sandbox is paused. Otherwise a paused sandbox is
	// resumed.
	OnlyIfRunning bool
	// Stdin is nil for none.
	Stdin io.Reader
	// Signals are passed on to the command; nil for none.
	Signals <-chan syscall.Signal
	// Started, Refused and Ended are functions, as the output is: the call calls them, and keeps
	// none of them.
	//
	// Started is called once, when a container is ready and just before the command starts; nil
	// for none.
	Started func()
	// Refused is called with each line of Result.Refused as soon as it is known, with the count at
	// that time; nil for none. It is called by one goroutine at a time, after Started and
	// concurrently with the output.
	Refused func(decisions.Summary)
	// Ended is called when a command that StartExec has started needs nothing of the request any
	// more; nil for none.
	Ended func()
}

// Result is how a command ended.
type Result struct {
	warm.Result
	// Cwd is where it ran, as a container path.
	Cwd string
	// Duration is from the call to the command's end.
	Duration time.Duration
	// Refused is what the command tried to reach and could not, and MoreRefused how many further
	// names there were. Calls that run in one container at the same time also have each other's.
	Refused     []decisions.Summary
	MoreRefused int
	// Hints are what else is to be said, without messages: each door has its own words.
	Hints []hints.Hint
}

// Failed reports whether the command did anything but succeed.
func (r Result) Failed() bool {
	return r.ExitCode != 0 || r.Signal != 0 || r.TimedOut || r.CommandFault != ""
}

// Exec runs a command in the sandbox's container, and blocks until the command and all that it
// started have ended. out receives its output, as session.Output says. Faults of the request are
// found before anything is started. When ctx ends, so does the command.
func (s *Service) Exec(ctx context.Context, id string, r Request,
	out session.Output) (Result, error) {
	box, err := s.Get(id)
	if err != nil {
		s.watchExec(Sandbox{}, r).end(ctx, Result{}, err)
		return Result{}, err
	}
	return s.exec(ctx, box, r, out)
}

func (s *Service) exec(ctx context.Context, box Sandbox, r Request,
	out session.Output) (Result, error) {
	watch := s.watchExec(box, r)
	ended, err := s.run(ctx, box, r, out, watch)
	watch.end(ctx, ended, err)
	return ended, err
}

func (s *Service) run(ctx context.Context, box Sandbox, r Request, out session.Output,
	watch *execWatch) (Result, error) {
	if r.Process != "" {
		return s.runBeside(ctx, box, r, out, watch)
	}
	if r.InSandbox {
		return s.runInside(ctx, box, r, out, watch)
	}
	done, err := s.cfg().Quotas.Take(s.account(box.User), quota.Commands, 1)
	if err != nil {
		return Result{}, fmt.Errorf("cannot run the command: %w", err)
	}
	defer done()
	c, err := s.planner.Resolve(box, r.Confinement)
	if err != nil {
		return Result{}, err
	}
	command, err := s.command(c, r)
	if err != nil {
		return Result{}, err
	}
	leave, err := s.enter(ctx, box, r.OnlyIfRunning)
	if err != nil {
		return Result{}, err
	}
	defer leave()
	decided, err := s.planner.Decide(c)
	if err != nil {
		return Result{}, err
	}
	watch.event.Pooled = s.pool.bind(ctx, decided, nil, s.token)
	p, err := s.planner.Plan(ctx, decided, false)
	if err != nil {
		return Result{}, err
	}
	mayConflict := s.mayConflict(p)
	command.Prepare = func(ctx context.Context, in *session.Session) (func(), error) {
		leaveTmp, err := s.planner.MakeTmpHome(ctx, p, s.runner, s.token)
		if err != nil {
			return nil, err
		}
		leaveTmp() // the command's own container has it
		return s.offers.Enter(ctx, in, p.Spec.User, p.Spec.Reaches), nil
	}
	command.Token = s.token
	command.Env = p.Environment(terminalVariables(r), r.Env, r.Secrets)
	var refused *refusals
	if p.Spec.Egress.Profile != "" {
		refused = s.refusals(p.Spec.ContainerName(), r.Refused)
		defer refused.end()
	}
	command.Started = func() {
		watch.running()
		if r.Started != nil {
			r.Started()
		}
		refused.start(ctx)
	}
	watch.decided(p.Spec.ContainerName())
	out, unheard := s.heard(watch, out)
	defer unheard()
	result, err := s.runner.Run(ctx, p.Spec, command, out)
	watch.ran(result)
	if err != nil {
		return Result{}, err
	}
	if result.CwdFault != "" {
		return Result{}, errs.Invalid("cannot run in cwd %s", result.CwdFault)
	}
	ended := Result{Result: result, Cwd: command.Cwd, Duration: time.Since(watch.begun)}
	ended.Refused, ended.MoreRefused = refused.end()
	if ended.Failed() {
		s.explain(ctx, &ended, watch, p, refused != nil)
		if reason, is := s.runsElsewhere(box, p.Spec.Reaches); is {
			text, _ := watch.last.text()
			ended.Hints = append(ended.Hints, hints.OwnLocalhost(text, reason)...)
		}
	}
	if ended.Exhausted != nil {
		ended.Hints = append(ended.Hints, ExhaustedHint(*ended.Exhausted))
	}
	if mayConflict {
		ended.Hints = append(ended.Hints, s.openElsewhere(ctx, p, watch.begun)...)
	}
	ended.Hints = append(ended.Hints, hints.Leftovers(result.Leftovers, result.MoreLeftovers)...)
	return ended, nil
}

// command checks a request and returns its command, without the environment.
func (s *Service) command(c *plan.Call, r Request) (warm.Command, error) {
	cfg := s.cfg()
	command := warm.Command{Command: session.Command{
		Command: launch.Command{
			Process: specs.Process{Args: r.Argv, Terminal: r.Terminal != nil,
				ConsoleSize: r.Terminal},
			Shell: r.Command, Login: r.Login,
		},
		Stdin: r.Stdin, Signals: r.Signals, Resizes: r.Resizes, Grace: cfg.KillGrace,
	}}
	if err := plan.CheckCommand(command.Command.Command, r.Env, r.Secrets); err != nil {
		return command, err
	}
	var limit time.Duration
	if command.Timeout, limit = r.timeout(cfg); command.Timeout <= 0 || command.Timeout > limit {
		return command,
			errs.Invalid(
				"timeoutMs %d is not between 1 and %d; start a command that takes longer as a process, and wait for that",
				command.Timeout.Milliseconds(), limit.Milliseconds())
	}
	cwd, err := c.Directory(r.Cwd)
	if err != nil {
		return command, err
	}
	command.Cwd = cwd.String()
	return command, nil
}

// timeout returns how long a command may take, and the longest that it could ask for.
func (r Request) timeout(cfg *Config) (timeout, limit time.Duration) {
	timeout, limit = cfg.DefaultTimeout, cfg.MaxTimeout
	if r.Terminal != nil { // a person may sit there
		timeout, limit = cfg.MaxAttachedTimeout, cfg.MaxAttachedTimeout
	}
	if r.Timeout != nil {
		timeout = *r.Timeout
	}
	return timeout, limit
}

// terminalVariables names the terminal for a call that does not: one that all programs know.
func terminalVariables(r Request) map[string]string {
	if r.Terminal == nil {
		return nil
	}
	return map[string]string{"TERM": "xterm-256color"}
}
