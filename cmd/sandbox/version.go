package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/internal/version"
)

// versions are the versions of both ends. Service is empty if it does not answer.
type versions struct {
	Sandbox version.Info `json:"sandbox"`
	Service string       `json:"sandboxd,omitempty"`
}

func versionCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this command and of the service",
		Long: `version prints the versions of this command and of the service. With --json it also has the commit, its
time, the Go toolchain and the platform of this command; "sandboxd" is missing if no service answers.
"sandbox --version" does not ask the service.`,
		Example: `  sandbox version
  sandbox version --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := a.client()
			defer c.Close()
			v := versions{Sandbox: version.Read()}
			h, err := c.Health(cmd.Context())
			v.Service = h.Version
			out := cmd.OutOrStdout()
			switch {
			case asJSON:
				return printJSON(out, v)
			case err != nil:
				_, err = fmt.Fprintf(out, "sandbox:  %s\nsandboxd: not reachable at %s\n",
					v.Sandbox, a)
			default:
				_, err = fmt.Fprintf(out, "sandbox:  %s\nsandboxd: %s\n", v.Sandbox,
					printable(v.Service))
			}
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
