package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func pauseCommand(a *app) *cobra.Command {
	return changeCommand(a, (*client.Client).Pause, &cobra.Command{
		Use:   "pause --user USER",
		Short: "Stop everything that runs in a sandbox until it is resumed",
		Long: `pause freezes a sandbox: its durable processes stop where they are, are not restarted, and take no processor
time. The sandbox stays paused when the service is restarted. A call that runs something in the sandbox, such as exec,
resumes it; exec --only-if-running does not. Files can be read and written meanwhile.

A sandbox in which a command runs cannot be paused.`,
		Example: `  sandbox pause --sandbox agent-7
  sandbox resume --sandbox agent-7`,
	})
}

func resumeCommand(a *app) *cobra.Command {
	return changeCommand(a, (*client.Client).Resume, &cobra.Command{
		Use:     "resume --user USER",
		Short:   "Let a paused sandbox go on",
		Long:    "resume lets a paused sandbox go on: its processes continue where they were.",
		Example: `  sandbox resume --sandbox agent-7`,
	})
}

// changeCommand completes a command that changes the state of a sandbox.
func changeCommand(a *app, change func(*client.Client, context.Context, string) (types.Sandbox, error), cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	return asks(a, &target{}, cmd, func(ctx context.Context, c *client.Client, id string, _ []string) (types.Sandbox, error) {
		return change(c, ctx, id)
	}, func(out io.Writer, box types.Sandbox) error {
		state := "is resumed"
		if box.Paused {
			state = "is paused"
		}
		_, err := fmt.Fprintf(out, "sandbox %s %s\n", box.ID, state)
		return err
	})
}
