package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func lsCommand(a *app) *cobra.Command {
	var look types.Look
	var long bool
	cmd := &cobra.Command{
		Use:   "ls --user USER [flags] [PATH]",
		Short: "List a directory of a sandbox",
		Long: `ls lists a directory: by default the working directory. PATH is relative to that, absolute inside, or
from the home as '~/…' (quoted, because the shell would put your own home there).

Directories end with a slash, and behind a symbolic link is what it says. Names that a terminal cannot
show are quoted; --json has them as they are.`,
		Example: `  sandbox ls --user alice
  sandbox ls --user alice -l /tmp`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().BoolVarP(&look.Follow, "dereference", "L", false,
		"if PATH is a symbolic link, list what it leads to")
	cmd.Flags().BoolVarP(&long, "long", "l", false, "print type, mode, size and time too")
	return asks(a, &target{}, cmd,
		func(ctx context.Context, c *client.Client, id string, args []string) (types.Listing,
			error) {
			if len(args) == 0 {
				args = []string{"."}
			}
			look.Target = client.Target(args[0])
			return c.ListEntries(ctx, id, look)
		}, func(out io.Writer, list types.Listing) error {
			return printListing(out, cmd.ErrOrStderr(), list, long)
		})
}

func printListing(out, notices io.Writer, list types.Listing, long bool) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, e := range list.Entries {
		name, err := entryName(e)
		if err != nil {
			return err
		}
		if long {
			name = strings.Join(entryColumns(e, name), "\t")
		}
		fmt.Fprintln(table, name)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if list.Truncated {
		fmt.Fprintf(notices, "sandbox: these are the first %d entries; there are more\n",
			len(list.Entries))
	}
	return nil
}
