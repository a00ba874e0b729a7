package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/internal/cleanup"
)

// exitHeld is the exit code of a cleanup that has changed nothing because a service is running.
const exitHeld = 3

func cleanupCommand(settings *string) *cobra.Command {
	c := &cleanup.Cleanup{}
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove what the service has made on this host",
		Long: `cleanup removes what the service of these settings has made: its containers with everything that runs in them,
the users' /tmp, its networks with their rules, its socket, and what it can make again in dataDir. It prints what
it removes. Homes stay, and so do the records of sandboxes and durable processes, unless --data is given. cleanup
also works without dataDir, because what is in Docker carries its name.

It does nothing while the service runs. With --all-instances it also removes what all other services have made
in this Docker, except for those that run.

It exits with 0 if everything is gone, with 1 if something is left, and with 3 if the service runs. An interrupt
ends it before the next thing is removed; the next cleanup goes on from there.`,
		Example: `  sandboxd cleanup --dry-run
  sandboxd cleanup
  sandboxd cleanup --data --settings ./settings.json
  sandboxd cleanup --all-instances`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if c.Config, err = loadConfig(*settings); err != nil {
				return err
			}
			c.Out = cmd.OutOrStdout()
			err = c.Run(cmd.Context())
			if held := (cleanup.HeldError{}); errors.As(err, &held) {
				return exitError{exitHeld, err}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&c.Data, "data", false,
		"remove records, too, and the logs of durable processes")
	cmd.Flags().BoolVar(&c.All, "all-instances", false, "remove what other services have left, too")
	cmd.Flags().BoolVarP(&c.DryRun, "dry-run", "n", false,
		"say what would be removed, and remove nothing")
	return cmd
}
