package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func processLogsCommand(a *app) *cobra.Command {
	var t target
	var q client.LogQuery
	var follows, asJSON bool
	cmd := &cobra.Command{
		Use:     "logs --user USER [-f] [-n LINES] PROCESS",
		Aliases: []string{"log"},
		Short:   "Print what a process has printed",
		Long: `logs prints the last lines of a process's log to stdout, as they are. The log has both stdout and stderr,
over all restarts.

A log that has reached its bound keeps its beginning and its end. --first prints the first lines instead.

With --follow it then prints new output, until the process has ended and will not be restarted, it is
interrupted (exit code 130), or the service stops (exit code 125). The process does not notice.`,
		Example: `  sandbox process logs --user alice web
  sandbox process logs --user alice -f -n 20 web
  sandbox process logs --user alice --first -n 20 web
  sandbox process logs --user alice -n 10000 web | grep -i error`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: t.completeProcesses(a, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Lines == 0 && cmd.Flags().Changed("lines") { // the client takes 0 for the default
				return errors.New("--lines 0: it must be at least 1")
			}
			return t.with(cmd, a, nil, func(c *client.Client, id string) error {
				processID, err := c.FindProcess(cmd.Context(), id, args[0])
				if err != nil {
					return err
				}
				if follows {
					return followLog(cmd, c, id, processID, q, asJSON)
				}
				log, err := c.ProcessLog(cmd.Context(), id, processID, q)
				return show(cmd, asJSON, log, err, func(out io.Writer, log types.ProcessLog) error {
					return printLog(out, cmd.ErrOrStderr(), log, q.First)
				})
			})
		},
	}
	t.flags(a, cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&follows, "follow", "f", false, "then print new output as it comes")
	flags.IntVarP(&q.Lines, "lines", "n", 0,
		"at most this many lines, the last ones, up to 10000; with --follow, of those printed so far (default 100)")
	flags.BoolVar(&q.First, "first", false,
		"the first lines, not the last ones; with --follow, everything from the first line on")
	_ = cmd.RegisterFlagCompletionFunc("lines", cobra.NoFileCompletions)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printLog(out, notices io.Writer, log types.ProcessLog, first bool) error {
	if log.Notice != "" {
		fmt.Fprintf(notices, "sandbox: %s\n", printable(log.Notice))
	}
	if log.Truncated {
		which := "last"
		if first {
			which = "first"
		}
		fmt.Fprintf(notices,
			"sandbox: the lines are too long to print all of them; these are the %s bytes\n", which)
	}
	return printData(out, log.Data, log.Encoding)
}

func printData(out io.Writer, text string, encoding types.Encoding) error {
	data, err := client.Decode(text, encoding)
	if err != nil {
		return fmt.Errorf("cannot read the service's answer: %w", err)
	}
	_, err = out.Write(data)
	return err
}

func followLog(cmd *cobra.Command, c *client.Client, id, processID string, q client.LogQuery,
	asJSON bool) error {
	events := func(ctx context.Context) iter.Seq2[types.ProcessLogEvent, error] {
		return c.FollowProcessLog(ctx, id, processID, q)
	}
	return follow(cmd, asJSON, events, func(event types.ProcessLogEvent) (err error) {
		switch {
		case event.ProcessLogEnd != nil:
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "sandbox: the process %s\n",
				lastText(*event.ProcessLogEnd))
		case event.Notice != "":
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "sandbox: %s\n", printable(event.Notice))
		default:
			err = printData(cmd.OutOrStdout(), event.Data, event.Encoding)
		}
		return err
	})
}

// lastText returns how the process ended whose log was followed.
func lastText(end types.ProcessLogEnd) string {
	how := ending(types.Process{ExitCode: end.ExitCode, Signal: end.Signal})
	switch end.Status {
	case "":
		return "was removed"
	case types.ProcessStopped:
		return "was stopped" + how
	default:
		return "has exited" + how
	}
}
