package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func nodeCommand(a *app) *cobra.Command {
	node := &cobra.Command{Use: "node",
		Short: "List, drain, undrain and remove the hosts of a cluster"}
	var asJSON bool
	list := &cobra.Command{
		Use:   "list",
		Short: "List the hosts of the cluster",
		Long:  "list shows the hosts that have a lease, and those that are lost, as far as the host that answers knows. It shows none if there is only one host.",
		Example: `  sandbox node list
  sandbox node list --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client().Nodes(cmd.Context())
			if err == nil && len(list.Nodes) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(),
					"There is only one host, or no host of the cluster has a lease: sandbox health says which.")
			}
			return show(cmd, asJSON, list.Nodes, err, printNodes)
		},
	}
	jsonFlag(list, &asJSON)
	drain := hostCommand(a, func(ctx context.Context, c *client.Client, host string) error {
		return c.SetDraining(ctx, host, true)
	}, &cobra.Command{
		Use:   "drain HOST",
		Short: "Move a host's users to other hosts",
		Long: `drain makes a host take no new users and give its users to other hosts: idle users at once, busy users when they are idle
again, or after ten minutes. When "sandbox node list" shows no users, the host can be stopped, upgraded or switched off.`,
		Example: `  sandbox node drain host-2`,
	})
	undrain := hostCommand(a, func(ctx context.Context, c *client.Client, host string) error {
		return c.SetDraining(ctx, host, false)
	}, &cobra.Command{
		Use:     "undrain HOST",
		Short:   "Let a drained host take users again",
		Long:    "undrain undoes drain. Users who have moved to other hosts stay there.",
		Example: `  sandbox node undrain host-2`,
	})
	remove := hostCommand(a, func(ctx context.Context, c *client.Client, host string) error {
		return c.RemoveNode(ctx, host)
	}, &cobra.Command{
		Use:   "remove HOST",
		Short: "Forget a host that is lost",
		Long: `remove forgets a lost host that will not come back. Make sure that nothing runs on it. The command is refused while the
host has a lease (drain it, and stop its sandboxd and then its fence), while its users wait for cluster.fenceCommand, and
while it has homes that no other host has.`,
		Example: `  sandbox node remove host-2`,
	})
	node.AddCommand(list, drain, undrain, remove)
	return node
}

// hostCommand completes a command that does something with the host that its argument names.
func hostCommand(a *app, do func(ctx context.Context, c *client.Client, host string) error,
	cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := a.client()
		defer c.Close()
		return do(cmd.Context(), c, args[0])
	}
	hosts := a.complete(func(ctx context.Context, c *client.Client) (names []string, _ error) {
		list, err := c.Nodes(ctx)
		for _, n := range list.Nodes {
			names = append(names, n.Name)
		}
		return names, err
	})
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string,
		word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return hosts(cmd, args, word)
	}
	return cmd
}

func printNodes(out io.Writer, nodes []types.Node) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HOST\tSTATE\tUSERS\tADDRESS\tVERSION")
	for _, n := range nodes {
		state := "ready"
		switch {
		case n.Lost:
			state = "lost"
		case n.Draining:
			state = "draining"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", n.Name, state, n.Users, n.Address, n.Version)
	}
	return table.Flush()
}
