package main

import (
	"context"
	"errors"
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

With --user it pauses every sandbox that this command line has registered for the user: there is one for each
choice of grants. A sandbox in which a command runs cannot be paused.`,
		Example: `  sandbox pause --sandbox agent-7
  sandbox resume --sandbox agent-7
  sandbox pause --user alice`,
	})
}

func resumeCommand(a *app) *cobra.Command {
	return changeCommand(a, (*client.Client).Resume, &cobra.Command{
		Use:     "resume --user USER",
		Short:   "Let a paused sandbox go on",
		Long:    "resume lets a paused sandbox go on, or with --user all that pause has paused: the processes continue where they were.",
		Example: `  sandbox resume --sandbox agent-7`,
	})
}

// changeCommand completes a command that changes the state of a sandbox, or of all that are a
// user's here.
func changeCommand(a *app,
	change func(*client.Client, context.Context, string) (types.Sandbox, error),
	cmd *cobra.Command) *cobra.Command {
	var t target
	var asJSON bool
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c := a.client()
		defer c.Close()
		ids, err := t.all(cmd.Context(), c)
		for _, id := range ids {
			box, fault := change(c, cmd.Context(), id)
			err = errors.Join(err, show(cmd, asJSON, box, fault, printState))
		}
		return err
	}
	t.flags(a, cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printState(out io.Writer, box types.Sandbox) error {
	state := "is resumed"
	if box.Paused {
		state = "is paused"
	}
	_, err := fmt.Fprintf(out, "sandbox %s %s\n", box.ID, state)
	return err
}
