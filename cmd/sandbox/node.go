package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
)

func nodeCommand(a *app) *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "List, drain, undrain and remove the hosts of a cluster"}
	var asJSON bool
	list := &cobra.Command{
		Use:   "list",
		Short: "List the hosts of the cluster",
		Long:  "list shows the hosts that have a lease, and those that are lost, as known to the host that answers. It shows none where there is one host alone.",
		Example: `  sandbox node list
  sandbox node list --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client().Nodes(cmd.Context())
			if err == nil && len(list.Nodes) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "There is one host alone, or no host of the cluster has a lease: sandbox health tells.")
			}
			return show(cmd, asJSON, list.Nodes, err, printNodes)
		},
	}
	jsonFlag(list, &asJSON)
	drain := &cobra.Command{
		Use:   "drain HOST",
		Short: "Move a host's users to other hosts",
		Long: `drain has a host take no new users and give those that it has to others: who is idle at once, who is busy when that is
over, or after ten minutes. When "sandbox node list" shows no users, it can be stopped, upgraded or switched off.`,
		Example:           `  sandbox node drain host-2`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHosts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.client().SetDraining(cmd.Context(), args[0], true)
		},
	}
	undrain := &cobra.Command{
		Use:               "undrain HOST",
		Short:             "Let a drained host take users again",
		Long:              "undrain ends what drain began. Users who have gone to other hosts stay there.",
		Example:           `  sandbox node undrain host-2`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHosts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.client().SetDraining(cmd.Context(), args[0], false)
		},
	}
	remove := &cobra.Command{
		Use:   "remove HOST",
		Short: "Forget a host that is lost",
		Long: `remove has a host that is lost, and that does not come back, be forgotten. Make sure that nothing of it runs. It is refused while
the host has a lease (drain it, and stop its sandboxd and then its fence), while its users wait for cluster.fenceCommand, and
while it has homes that no other has.`,
		Example:           `  sandbox node remove host-2`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeHosts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.client().RemoveNode(cmd.Context(), args[0])
		},
	}
	node.AddCommand(list, drain, undrain, remove)
	return node
}

// completeHosts knows the hosts of the cluster, for commands of one.
func (a *app) completeHosts(cmd *cobra.Command, args []string, _ string) (hosts []cobra.Completion, _ cobra.ShellCompDirective) {
	c := a.client()
	defer c.Close()
	list, err := c.Nodes(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, n := range list.Nodes {
		if len(args) == 0 {
			hosts = append(hosts, n.Name)
		}
	}
	return hosts, cobra.ShellCompDirectiveNoFileComp
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
