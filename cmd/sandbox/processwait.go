package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// maxAway is how long wait goes on while the service does not answer: a restart takes some
// seconds.
const maxAway = 2 * time.Minute

func processWaitCommand(a *app) *cobra.Command {
	var t target
	var w client.Wait
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "wait --user USER [--ready] [--timeout TIME] PROCESS",
		Short: "Wait until a process has ended, or until it is ready",
		Long: `wait waits until a process has ended and will not be restarted, says how it ended, and exits with its exit
code: 128+N means that signal N ended it. With --keep-alive a process ends only when it is stopped.

With --ready it waits until the process is ready for its work, and exits with 0 then.

If the service is started again meanwhile, it goes on waiting; it gives up when nothing has answered for two minutes.

If the time is over first, it exits with 124, and the process goes on. 125 means that the process could not be
waited for, that nobody knows how it ended, or, with --ready, that it ended before it was ready.`,
		Example: `  sandbox process wait --user alice build
  sandbox process wait --user alice --ready --timeout 30s web`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: t.completeProcesses(a, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("timeout") && w.Timeout <= 0 {
				return fmt.Errorf("--timeout %s: it must be more than 0", w.Timeout)
			}
			return t.with(cmd, a, nil, func(c *client.Client, id string) error {
				return waitProcess(cmd, c, id, args[0], w, asJSON)
			})
		},
	}
	t.flags(a, cmd)
	flags := cmd.Flags()
	flags.BoolVar(&w.Ready, "ready", false,
		"wait until it is ready, which it needs a readiness check for")
	flags.DurationVar(&w.Timeout, "timeout", 0,
		"how long to wait at most, such as 10m (default: as long as it takes)")
	_ = cmd.RegisterFlagCompletionFunc("timeout", cobra.NoFileCompletions)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func waitProcess(cmd *cobra.Command, c *client.Client, id, word string, w client.Wait,
	asJSON bool) error {
	processID, err := c.FindProcess(cmd.Context(), id, word)
	if err != nil {
		return err
	}
	if _, err := c.Process(cmd.Context(), id, processID); err != nil {
		return err // what cannot be reached at first is not waited for
	}
	ctx := cmd.Context()
	waited, err := outwait(ctx, cmd.ErrOrStderr(), w,
		func(w client.Wait) (types.WaitedProcess, error) {
			return c.WaitProcess(ctx, id, processID, w)
		},
		func() bool {
			_, err := c.Process(ctx, id, processID)
			return err == nil || !stopped(err)
		})
	if err != nil {
		return err
	}
	p := waited.Process
	ready := w.Ready && p.Ready != nil && p.Ready.OK
	switch {
	case asJSON:
		err = printJSON(cmd.OutOrStdout(), waited)
	case waited.TimedOut:
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "sandbox: process %s goes on after %s\n", processID,
			w.Timeout)
	case ready:
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ready\n", processID)
	default:
		err = printEnds(cmd.OutOrStdout(), p)
	}
	switch {
	case err != nil:
		return err
	case waited.TimedOut:
		return exitCode(124)
	case ready:
		return nil
	case w.Ready || p.Signal == nil && p.ExitCode == nil:
		return exitCode(125)
	case p.Signal != nil:
		return exitCode(128 + signalNumber(*p.Signal))
	case *p.ExitCode != 0:
		return exitCode(*p.ExitCode)
	}
	return nil
}

// outwait waits for a process with wait, but goes on when the service is started again meanwhile.
// there reports whether the service answers.
func outwait(ctx context.Context, notices io.Writer, w client.Wait,
	wait func(client.Wait) (types.WaitedProcess, error),
	there func() bool) (waited types.WaitedProcess, err error) {
	begun, limit := time.Now(), w.Timeout
	var away time.Time // since when nothing has answered; zero if something has
	told := false
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		waited, err = wait(w)
		if err == nil || !stopped(err) || ctx.Err() != nil {
			return waited, err
		}
		if !told {
			fmt.Fprintf(notices, "sandbox: waiting for the service: %s\n", printable(err.Error()))
			told = true
		}
		if away.IsZero() {
			away = time.Now()
		}
		if time.Since(away) > maxAway || limit > 0 && time.Since(begun)+pause >= limit {
			return waited, err
		}
		select {
		case <-ctx.Done():
			return waited, err
		case <-time.After(pause):
		}
		if there() {
			away = time.Time{}
		}
		if limit > 0 {
			w.Timeout = max(limit-time.Since(begun), time.Millisecond)
		}
	}
}

// stopped reports whether a call failed because the service stops or is not there.
func stopped(err error) bool {
	told, is := errors.AsType[*client.Error](err)
	return !is || told.Kind == types.Unavailable
}
