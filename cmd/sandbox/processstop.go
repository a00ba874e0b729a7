package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func processStopCommand(a *app) *cobra.Command {
	var t target
	var signal string
	cmd := &cobra.Command{
		Use:   "stop --user USER [--signal NAME] PROCESS",
		Short: "Stop a process for good",
		Long: `stop sends a signal to everything that a process has started, and SIGKILL to what is left some seconds
later. It waits until everything has ended. The process is not restarted, but its log stays.`,
		Example: `  sandbox process stop --user alice web
  sandbox process stop --user alice --signal INT p-k3v7q2m5x4ta`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: t.completeProcesses(a, 1),
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "TERM", "TERM, INT, HUP or KILL")
	_ = cmd.RegisterFlagCompletionFunc("signal",
		cobra.FixedCompletions([]string{"TERM", "INT", "HUP", "KILL"},
			cobra.ShellCompDirectiveNoFileComp))
	return asks(a, &t, cmd,
		func(ctx context.Context, c *client.Client, id string, args []string) (p types.Process,
			_ error) {
			processID, err := c.FindProcess(ctx, id, args[0])
			if err != nil {
				return p, err
			}
			return c.StopProcess(ctx, id, processID,
				strings.TrimPrefix(strings.ToUpper(signal), "SIG"))
		}, func(out io.Writer, p types.Process) error { return printEnds(out, p) })
}

func processStopAllCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stop-all --user USER",
		Short: "Stop all of a user's processes for good",
		Long: `stop-all stops all of a user's processes that have not ended, as stop does, at the same time, and lists
them.`,
		Example: `  sandbox process stop-all --user alice`,
		Args:    cobra.NoArgs,
	}
	return asks(a, &target{}, cmd,
		func(ctx context.Context, c *client.Client, id string, _ []string) ([]types.Process,
			error) {
			return c.StopProcesses(ctx, id)
		}, func(out io.Writer, list []types.Process) error {
			if len(list) == 0 {
				_, err := fmt.Fprintln(cmd.ErrOrStderr(), "sandbox: there is no process to stop")
				return err
			}
			return printEnds(out, list...)
		})
}

func processRmCommand(a *app) *cobra.Command {
	var t target
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "rm --user USER PROCESS…",
		Aliases: []string{"remove"},
		Short:   "Remove processes with their logs",
		Long: `rm removes processes with their logs, and prints the ID of each that it has removed. A running process is
stopped first. If a process cannot be removed, rm goes on with the others.`,
		Example: `  sandbox process rm --user alice web
  sandbox process rm --user alice p-k3v7q2m5x4ta p-zq2xw7ab3cde`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: t.completeProcesses(a, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.with(cmd, a, nil, func(c *client.Client, id string) error {
				removed, err := removeProcesses(cmd.Context(), c, id, args)
				if asJSON {
					return errors.Join(printJSON(cmd.OutOrStdout(), removed), err)
				}
				for _, processID := range removed {
					fmt.Fprintln(cmd.OutOrStdout(), processID)
				}
				return err
			})
		},
	}
	t.flags(a, cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// removeProcesses returns the ids of the processes that it has removed, even with an error.
func removeProcesses(ctx context.Context, c *client.Client, id string,
	words []string) (removed []string, _ error) {
	var faults []error
	removed = []string{}
	for _, word := range words {
		processID, err := c.FindProcess(ctx, id, word)
		if err == nil {
			err = c.RemoveProcess(ctx, id, processID)
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		removed = append(removed, processID)
	}
	return removed, errors.Join(faults...)
}

// printEnds prints how each process ended.
func printEnds(out io.Writer, list ...types.Process) error {
	var text strings.Builder
	for _, p := range list {
		text.WriteString(p.ID)
		if p.Name != "" {
			text.WriteString(" " + printable(p.Name))
		}
		fmt.Fprintf(&text, ": %s%s\n", printable(string(p.Status)), ending(p))
	}
	_, err := io.WriteString(out, text.String())
	return err
}
