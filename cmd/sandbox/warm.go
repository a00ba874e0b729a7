package main

import (
	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
)

func warmCommand(a *app) *cobra.Command {
	var user string
	var grants []string
	cmd := &cobra.Command{
		Use:   "warm --user USER [--grant TAG]…",
		Short: "Make the container of the next command in advance",
		Long: `warm makes the container for a "sandbox exec" with the same grants in the background, so that exec finds it
there. Containers that commands wait for are made first. A container with a network is only made by the
command, because it depends on the names that the command may reach. "sandbox ps" shows whether it is there.`,
		Example: `  sandbox warm --user alice
  sandbox warm --user alice --grant @workspace`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := a.client()
			defer c.Close()
			id, permissions := needs(user, grants)
			if grants == nil {
				grants = []string{}
			}
			return put(cmd.Context(), c, id,
				types.Registration{UserID: user, Permissions: permissions, Warm: grants})
		},
	}
	cmd.Flags().StringVarP(&user, "user", "u", "",
		"the user whose sandbox to use; it is registered if necessary")
	cmd.Flags().StringArrayVar(&grants, "grant", nil,
		"what the command may do: @workspace, @write:/path, @read:/path, @process:NAME or @events (repeatable)")
	_ = cmd.MarkFlagRequired("user")
	a.completeUsers(cmd)
	return cmd
}
