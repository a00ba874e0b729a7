package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/internal/hints"
)

// attachFlags are the flags of `sandbox attach`.
type attachFlags struct {
	target
	stdin, kill, asJSON bool
}

func attachCommand(a *app) *cobra.Command {
	var f attachFlags
	cmd := &cobra.Command{
		Use:   "attach --user USER [flags] [EXEC_ID]",
		Short: "Come back to a command whose connection was lost",
		Long: `attach comes back to a command that was run with --detach-on-disconnect: it prints what the service has kept
of its output, at least the first 64 KiB and the last MiB (less if it changes between stdout and stderr all the
time), and goes on as "sandbox exec" does, with the same exit codes. A command that has ended is kept for five
minutes, or until it makes room for newer ones (quotas, detachedExecs). A command with a terminal uses this
terminal; to any other, -i passes stdin on. An earlier attachment to the command is cut off.

Without an EXEC_ID it lists the commands to come back to.`,
		Example: `  sandbox exec --user alice --detach-on-disconnect -it
  sandbox attach --user alice
  sandbox attach --user alice x-3kq7vbl2m5x4tawzr6yj2ce4nq
  sandbox attach --user alice --kill x-3kq7vbl2m5x4tawzr6yj2ce4nq`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAttach(cmd, a.client(), f, args)
		},
	}
	f.target.flags(a, cmd)
	flags := cmd.Flags()
	flags.BoolVarP(&f.stdin, "interactive", "i", false, "pass stdin on to the command")
	flags.BoolVar(&f.kill, "kill", false, "end the command instead")
	jsonFlag(cmd, &f.asJSON)
	return cmd
}

func runAttach(cmd *cobra.Command, c *client.Client, f attachFlags, args []string) error {
	defer c.Close()
	ctx, cancel := context.WithCancelCause(cmd.Context())
	defer cancel(nil)
	id, err := f.find(ctx, c, nil)
	if err != nil {
		return err
	}
	execs, err := c.DetachedExecs(ctx, id)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return show(cmd, f.asJSON, execs, nil, listExecs)
	}
	if f.kill {
		_, err := c.KillExec(ctx, id, args[0])
		return err
	}
	streams := client.Streams{Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
		Signals: relaySignals(ctx, cancel, true)}
	streams.Lost = func(bytes int64) {
		fmt.Fprintf(cmd.ErrOrStderr(), "\r\nsandbox: %s of output are not kept here\r\n",
			bytesText(bytes))
	}
	if f.stdin {
		streams.Stdin = input(cmd.InOrStdin())
	}
	leave := func() {}
	if slices.ContainsFunc(execs, func(e types.DetachedExec) bool {
		return e.ExecID == args[0] && e.TTY
	}) {
		file, err := terminalOf(cmd.InOrStdin())
		if err != nil {
			return fmt.Errorf("exec %s has a terminal, and there is none on stdin to show it on",
				args[0])
		}
		streams.Stdin = file
		if leave, err = sitDown(ctx, file, &streams); err != nil {
			return err
		}
	}
	defer leave()
	result, err := c.Reattach(ctx, id, args[0], 0, streams)
	leave()
	return conclude(cmd.ErrOrStderr(), result, err, advice{door: hints.CLI}, false)
}

func listExecs(out io.Writer, execs []types.DetachedExec) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "EXEC ID\tSTATE\tATTACHED\tBEGUN\tOUTPUT\tCOMMAND")
	columns := width(out)
	for _, e := range execs {
		attached := "no"
		if e.Attached {
			attached = "yes"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s ago\t%s\t%s\n", e.ExecID, stateOf(e), attached,
			age(e.CreatedAt),
			bytesText(e.OutputBytes), fit(printable(e.Command), columns/2))
	}
	return table.Flush()
}

// stateOf returns the state of an exec in a word or two.
func stateOf(e types.DetachedExec) string {
	switch {
	case e.EndedAt == nil:
		return "running"
	case e.Result == nil:
		return "failed"
	case e.Result.TimedOut:
		return "timed out"
	case e.Result.Signal != nil:
		return *e.Result.Signal
	default:
		return fmt.Sprint("exited ", *e.Result.ExitCode)
	}
}
