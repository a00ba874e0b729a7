package main

import (
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

Processes are a user's: with --sandbox, too, they are all of that sandbox's user. A process is named by
its ID, or by its name if no other of the user's has that.`,
	}
	cmd.AddCommand(processStartCommand(a), processListCommand(a), processGetCommand(a), processStopCommand(a),
		processStopAllCommand(a), processRmCommand(a), processLogsCommand(a))
	return cmd
}

func processListCommand(a *app) *cobra.Command {
	var t target
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list --user USER",
		Aliases: []string{"ls"},
		Short:   "List a user's processes",
		Long: `list lists a user's processes by their creation, those that have ended included. STATUS is ready or
unready for one that runs and was started with a check for it. EXIT is how one ended last: its exit code,
a signal's name, or OOM when it had used up its memory. A long name or command is cut to fit the terminal;
--json has everything.`,
		Example: `  sandbox process list --user alice
  sandbox process list --sandbox agent-7 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.with(cmd, a, nil, func(c *client.Client, id string) error {
				list, err := c.Processes(cmd.Context(), id)
				return show(cmd, asJSON, list, err, func(out io.Writer, list []types.Process) error {
					return printProcesses(out, list, width(out), time.Now())
				})
			})
		},
	}
	t.flags(a, cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func processGetCommand(a *app) *cobra.Command {
	var t target
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "get --user USER PROCESS",
		Aliases: []string{"show"},
		Short:   "Show all of a process",
		Long: `get shows what is known of a process: what it runs, how it is and how it ended last, what it was granted,
and where its log is on the service's host.`,
		Example: `  sandbox process get --user alice web
  sandbox process get --user alice p-k3v7q2m5x4ta --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: t.completeProcesses(a, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.withProcess(cmd, a, args[0], func(c *client.Client, id, processID string) error {
				p, err := c.Process(cmd.Context(), id, processID)
				return show(cmd, asJSON, p, err, func(out io.Writer, p types.Process) error {
					return printProcess(out, p, time.Now())
				})
			})
		},
	}
	t.flags(a, cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// with calls do with the id of a sandbox that there is: do only looks at it, or ends something.
func (t target) with(cmd *cobra.Command, a *app, grants []string, do func(c *client.Client, id string) error) error {
	c := a.client()
	defer c.Close()
	id, err := t.find(cmd.Context(), c, grants)
	if err != nil {
		return err
	}
	return do(c, id)
}

// withProcess calls do with the sandbox's id and that of the process that word means.
func (t target) withProcess(cmd *cobra.Command, a *app, word string, do func(c *client.Client, id, processID string) error) error {
	return t.with(cmd, a, nil, func(c *client.Client, id string) error {
		processID, err := findProcess(cmd.Context(), c, id, word)
		if err != nil {
			return err
		}
		return do(c, id, processID)
	})
}
