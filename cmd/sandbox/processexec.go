package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// afterProcess returns the command after a process. Flags end with the process, so a -- after it is
// still there.
func afterProcess(args []string) []string {
	if len(args) > 1 && args[1] == "--" {
		return args[2:]
	}
	return args[1:]
}

func processExecCommand(a *app) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec --user USER [flags] PROCESS -- [COMMAND]",
		Short: "Run a command in a process's container",
		Long: `exec runs a command in the container of a process, with what the process has: its files, its names, its loopback,
its /tmp and its kernel. The command ends with the process. Its directory is the process's, and its environment has the
variables that the process was started with, but for secrets. What it leaves running ends with it.

All else is as for "sandbox exec".`,
		Example: `  sandbox process exec --user alice web -- 'curl -s localhost:8000'
  sandbox process exec --user alice -it web
  sandbox process exec --user alice web -- ps aux`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || !f.tty && len(afterProcess(args)) == 0 { // at a terminal there is a shell
				return errors.New("name a process, and a command after it: sandbox process exec --user USER PROCESS -- COMMAND")
			}
			if len(args) > 1 && args[1] != "--" && strings.HasPrefix(args[1], "-") {
				return fmt.Errorf("flags such as %s go before PROCESS; a command comes after --", args[1])
			}
			return nil
		},
		ValidArgsFunction: f.target.completeProcesses(a, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runExec(cmd, a.client(), f, afterProcess(args),
				func(ctx context.Context, c *client.Client, e *types.Exec) (string, error) {
					id, err := f.find(ctx, c, nil)
					if err != nil {
						return "", err
					}
					if e.Process, err = c.FindProcess(ctx, id, args[0]); err != nil {
						return "", err
					}
					p, err := c.Process(ctx, id, e.Process)
					if f.sandbox != "" || p.SandboxID == "" {
						return id, err
					}
					return p.SandboxID, err // the one that has started it
				})
		},
	}
	cmd.Flags().SetInterspersed(false)
	f.target.flags(a, cmd)
	f.howFlags(cmd)
	cmd.Flags().Lookup("cwd").Usage = "directory to run in (default: the process's)"
	f.runFlags(cmd)
	return cmd
}
