package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func processCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "process",
		Aliases: []string{"processes"},
		Short:   "Run durable processes, which go on when the service ends",
		Long: `process starts, shows and ends durable processes. Each has a container of its own; it goes on when the
service stops, crashes or is upgraded, and the service finds it again.

Processes belong to a user: with --sandbox, too, they are all those of that sandbox's user. A process is
named by its ID or by its name. Of several with one name, that is the one that has not ended, or else the last.`,
	}
	cmd.AddCommand(processStartCommand(a), processListCommand(a), processGetCommand(a),
		processExecCommand(a),
		processWaitCommand(a), processStopCommand(a),
		processStopAllCommand(a), processRmCommand(a), processLogsCommand(a))
	return cmd
}

func processListCommand(a *app) *cobra.Command {
	return asks(a, &target{}, &cobra.Command{
		Use:     "list --user USER",
		Aliases: []string{"ls"},
		Short:   "List a user's processes",
		Long: `list lists a user's processes in the order of their creation, including those that have ended. STATUS is
ready or unready for a running process that was started with a readiness check, and paused for one whose
sandbox is paused. EXIT is how a process ended last: its exit code, a signal's name, or OOM if it had used up
its memory. A long name or command is cut to fit the terminal; --json has everything.`,
		Example: `  sandbox process list --user alice
  sandbox process list --sandbox agent-7 --json`,
		Args: cobra.NoArgs,
	}, func(ctx context.Context, c *client.Client, id string, _ []string) ([]types.Process, error) {
		return c.Processes(ctx, id)
	}, func(out io.Writer, list []types.Process) error {
		return printProcesses(out, list, width(out), time.Now())
	})
}

func processGetCommand(a *app) *cobra.Command {
	var t target
	return asks(a, &t, &cobra.Command{
		Use:     "get --user USER PROCESS",
		Aliases: []string{"show"},
		Short:   "Show everything about a process",
		Long: `get shows what is known about a process: what it runs, its state and how it ended last, what it was granted,
and where its log is on the service's host.`,
		Example: `  sandbox process get --user alice web
  sandbox process get --user alice p-k3v7q2m5x4ta --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: t.completeProcesses(a, 1),
	}, func(ctx context.Context, c *client.Client, id string, args []string) (p types.Process,
		_ error) {
		processID, err := c.FindProcess(ctx, id, args[0])
		if err != nil {
			return p, err
		}
		return c.Process(ctx, id, processID)
	}, func(out io.Writer, p types.Process) error { return printProcess(out, p, time.Now()) })
}

// with calls do with the id of an existing sandbox, for commands that only look at it or end
// something.
func (t target) with(cmd *cobra.Command, a *app, grants []string,
	do func(c *client.Client, id string) error) error {
	c := a.client()
	defer c.Close()
	id, err := t.find(cmd.Context(), c, grants)
	if err != nil {
		return err
	}
	return do(c, id)
}
