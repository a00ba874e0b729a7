package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/hints"
)

// execFlags are the flags of `sandbox exec`.
type execFlags struct {
	target
	insideFlags
	commandFlags
	timeout           time.Duration
	stdin, tty, stats bool
	detach            bool
	onlyIfRunning     bool
}

func execCommand(a *app) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec --user USER [flags] -- [COMMAND]",
		Short: "Run a command in a user's sandbox",
		Long: `exec runs a command in a user's sandbox and streams what it prints.

One argument is a command line for the shell; several are a program and its arguments, passed on
as they are: in those, a quoted ~ stays a ~, and your own shell replaces one that is not quoted. The command reads the home and writes to /tmp. --grant lets it do more: write to the
working directory with @workspace, write to a path with @write:/path, see a mount with @read:/path.
It has no network; --allow-domain lets it reach a name by HTTP and HTTPS, and --package-manager the
registries of a language. What it tried to reach and was refused is listed when it ends. --deny-read,
--deny-write and --deny-domain take away what it would have otherwise, and override all other flags.
"sandbox explain" shows what a call with the same flags would see and reach.

A command may take 30 seconds, or what --timeout says, five minutes at most unless the service's settings say
otherwise. For what takes longer there are "sandbox process start" and "sandbox process wait".

With -t the command runs at a terminal of its own, as large as this one, and with -it it gets what is
typed here: that is for a shell, an editor or a pager. Without a COMMAND it is the image's bash, or sh.
It may run for eight hours, unless the service's settings say otherwise.

With --persistent the calls with the same grants share one machine that has all of them: a server that one has left
running answers the next at localhost, and /tmp, locks and watches are the same. What it reaches is what
--allow-domain and --package-manager have said last. A --sandbox that is registered as persistent is used like that,
too, unless a flag asks for something else, or --in call.

With --detach-on-disconnect the command goes on when the connection is lost, and when this terminal is
closed: "sandbox attach" comes back to it.

exec exits with the command's exit code. 128+N means that signal N ended it, 124 that
its time was up, and 125 that it could not be run. Ctrl-C goes to the command, and so do SIGTERM, SIGHUP, SIGQUIT,
SIGUSR1 and SIGUSR2; unless -it was given, the third Ctrl-C in a row, with no more than ten seconds between them,
cuts the connection, which ends it unless --detach-on-disconnect was given ("sandbox attach --kill" does then).
So does a stdin that cannot be read to its end, with -i.`,
		Example: `  sandbox exec --user alice -it
  sandbox exec --user alice -- 'python3 -c "print(6*7)"'
  sandbox exec --user alice -- ls -l /home
  sandbox exec --user alice --grant @workspace -- 'echo hello > notes.txt'
  sandbox exec --user alice --allow-domain example.org -- curl -sS https://example.org
  sandbox exec --user alice --grant @workspace --package-manager node -- npm install
  sandbox exec --user alice --grant @workspace --deny-read /home/.env --deny-write /home/.git -- make
  sandbox exec --user alice --persistent --grant @workspace -- 'python3 -m http.server 8000 >log 2>&1 &'
  sandbox exec --user alice --persistent --grant @workspace -- 'curl -s localhost:8000'
  sandbox exec --user alice -i -- 'wc -l' < access.log
  sandbox exec --user alice --grant @workspace -it -- vim notes.txt
  sandbox exec --user alice --env CI=1 --timeout 2m -- 'make test'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.tty {
				return nil // a shell
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return runExec(cmd, a.client(), f, args,
				func(ctx context.Context, c *client.Client, e *types.Exec) (string, error) {
					id, in, err := f.insideFlags.register(ctx, c, f.target, f.grantFlags)
					if e.In = in; f.persistent {
						e.Permissions, e.AllowedDomains, e.PackageManagers = nil, nil, nil
					}
					return id, err
				})
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false)
	f.target.flags(a, cmd)
	f.insideFlags.flags(cmd)
	f.commandFlags.flags(cmd)
	f.runFlags(cmd)
	return cmd
}

// runFlags are the flags for how to follow a command.
func (f *execFlags) runFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.DurationVar(&f.timeout, "timeout", 0,
		"end the command after this time; 5m at most, unless the service's settings say otherwise (default: the service's, 30s, or 8h with --tty)")
	flags.BoolVarP(&f.stdin, "interactive", "i", false, "pass stdin on to the command")
	flags.BoolVarP(&f.tty, "tty", "t", false,
		"run the command at a terminal; with -i, at this one; without, its stdin is /dev/null")
	flags.BoolVar(&f.onlyIfRunning, "only-if-running", false,
		"fail if the sandbox is paused, instead of resuming it")
	flags.BoolVar(&f.detach, "detach-on-disconnect", false,
		"let the command go on when the connection is lost")
	flags.BoolVar(&f.stats, "stats", false,
		"say on stderr how the command ended and how long it took")
}

// runExec runs a command in the sandbox that at returns, which may change the request.
func runExec(cmd *cobra.Command, c *client.Client, f execFlags, args []string,
	at func(context.Context, *client.Client, *types.Exec) (id string, _ error)) error {
	defer c.Close()
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	e, err := f.exec(args)
	if err != nil {
		return err
	}
	signals := relaySignals(ctx, cancel, f.detach)
	streams := client.Streams{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
		Signals: signals}
	if f.stdin {
		streams.Stdin = input(cmd.InOrStdin())
	}
	id, err := at(ctx, c, &e)
	if err != nil {
		return err
	}
	if f.detach {
		streams.Started = func(start client.Start) {
			fmt.Fprintf(cmd.ErrOrStderr(), "sandbox: to come back: sandbox attach %s %s\r\n",
				f.target, start.ExecID)
		}
	}
	leave := func() {}
	if f.tty {
		file, err := terminalOf(cmd.InOrStdin())
		if err != nil {
			return err
		}
		askForTerminal(&e, file)
		if leave, err = sitDown(ctx, file, &streams); err != nil {
			return err
		}
	}
	defer leave()
	result, err := c.Attach(ctx, id, e, streams)
	leave()
	if !f.tty {
		err = tooLong(ctx, c, f.timeout, err)
	}
	return conclude(cmd.ErrOrStderr(), result, err, advice{hints.CLI, f.restrictions.DeniedDomains},
		f.stats)
}

// conclude prints how a command has ended, as far as that is asked for, and what else there is to
// say, and returns its exit code.
func conclude(out io.Writer, result types.Result, err error, remedy advice, stats bool) error {
	if cut, is := errors.AsType[cutOff](err); is {
		return exitCode(128 + int(cut))
	}
	if err != nil {
		return err
	}
	tellRefusals(out, result, remedy)
	tellHints(out, result, remedy)
	if stats || result.TimedOut {
		describe(out, result)
	}
	return code(result)
}

// tooLong words the refusal of a timeout that is more than a call may take.
func tooLong(ctx context.Context, c *client.Client, timeout time.Duration, err error) error {
	refused, is := errors.AsType[*client.Error](err)
	if !is || refused.Kind != types.Invalid || timeout == 0 {
		return err
	}
	health, unknown := c.Health(ctx)
	limit := time.Duration(health.MaxTimeoutMs) * time.Millisecond
	if unknown != nil || timeout <= limit {
		return err
	}
	return fmt.Errorf(
		"--timeout %s is more than %s, the most that a call may take here: start what takes longer with \"sandbox process start\", and wait for it with \"sandbox process wait\"",
		timeout, limit)
}

// exec turns the flags into a request of the API.
func (f execFlags) exec(args []string) (types.Exec, error) {
	env, err := f.variables()
	e := types.Exec{
		Permissions: f.permissions(), AllowedDomains: f.domains, PackageManagers: f.managers,
		Restrictions: f.restrictions, Home: f.home, Cwd: f.cwd, Login: f.login, Env: env,
		DetachOnDisconnect: f.detach, OnlyIfRunning: f.onlyIfRunning,
	}
	e.Command, e.Argv = commandOf(args)
	if len(args) == 0 {
		e.Command = shell
	}
	if f.timeout != 0 {
		ms := f.timeout.Milliseconds()
		e.TimeoutMs = &ms
	}
	return e, err
}

// shell is what runs if no command is given.
const shell = "if command -v bash >/dev/null; then exec bash; else exec sh; fi"

// cutOff is the signal that made us cut the connection.
type cutOff syscall.Signal

func (c cutOff) Error() string { return syscall.Signal(c).String() }

// patience is how many interrupts in a row the command gets before the connection is cut. They are
// in a row if there is no more than inARow between each and the next.
const (
	patience = 2
	inARow   = 10 * time.Second
)

// interrupts counts interrupts in a row.
type interrupts struct {
	count int
	last  time.Time
}

// cut reports whether an interrupt that comes now cuts the connection.
func (i *interrupts) cut(now time.Time) bool {
	if now.Sub(i.last) > inARow {
		i.count = 0
	}
	i.count++
	i.last = now
	return i.count > patience
}

// relaySignals passes on the signals that a terminal or a caller sends us, until ctx ends. It does
// not pass SIGHUP on to a command that goes on without us.
func relaySignals(ctx context.Context, cut context.CancelCauseFunc, goesOn bool) <-chan string {
	came := make(chan os.Signal, 16)
	signal.Notify(came, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1,
		unix.SIGUSR2)
	names := make(chan string, 16)
	go func() {
		// Notify stays on: an interrupt that comes while we exit must not change the exit code.
		for row := (interrupts{}); ; {
			select {
			case s := <-came:
				number, _ := s.(syscall.Signal)
				if s == unix.SIGINT && row.cut(time.Now()) || goesOn && s == unix.SIGHUP {
					cut(cutOff(number))
					return
				}
				select {
				case names <- strings.TrimPrefix(unix.SignalName(number), "SIG"):
				default:
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return names
}

// code returns the exit code for a result.
func code(r types.Result) error {
	switch {
	case r.TimedOut:
		return exitCode(124)
	case r.Signal != nil:
		return exitCode(128 + signalNumber(*r.Signal))
	case r.ExitCode != nil && *r.ExitCode != 0:
		return exitCode(*r.ExitCode)
	default:
		return nil
	}
}

// signalNumber reads a name such as SIGKILL, or SIG34 for a signal that has no name.
func signalNumber(name string) int {
	if number := unix.SignalNum(name); number != 0 {
		return int(number)
	}
	number, _ := strconv.Atoi(strings.TrimPrefix(name, "SIG"))
	return number
}

func describe(out io.Writer, r types.Result) {
	how := "was ended"
	switch {
	case r.TimedOut:
		how = "timed out"
	case r.Signal != nil:
		how = "was ended by " + *r.Signal
	case r.ExitCode != nil:
		how = fmt.Sprintf("exited with %d", *r.ExitCode)
	}
	container := "warm container"
	if r.Cold {
		container = "cold: a container was made"
	}
	fmt.Fprintf(out, "sandbox: the command %s after %.1f ms (%s)\n", how, r.DurationMs, container)
}
