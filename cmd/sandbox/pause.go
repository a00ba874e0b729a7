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
		Short: "Stop all that runs in a sandbox until it is resumed",
		Long: `pause freezes a sandbox: its durable processes stop where they are and are not started again, and take no
processor time. It stays so when the service is started again. What runs something in the sandbox resumes it, such as
exec; exec --only-if-running does not. Files can be read and written meanwhile.

While a command runs in the sandbox it cannot be paused.`,
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

// changeCommand completes a command that changes how a sandbox is.
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
