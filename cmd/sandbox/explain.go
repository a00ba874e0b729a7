package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func explainCommand(a *app) *cobra.Command {
	var t target
	var w grantFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain --user USER [--grant TAG]… [--allow-domain NAME]… [--home DIR]",
		Short: "Show what a call would see and reach, and why",
		Long: `explain shows the view that "sandbox exec" would get with the same grants: each place with what the
call may do there and why, where HOME points and tools keep their state, and what it reaches beyond
files. Nothing is started.

Of the places, the longest that holds a path decides about it: "hidden" is neither read nor written,
and "empty" is an empty directory.`,
		Example: `  sandbox explain --user alice
  sandbox explain --user alice --grant @workspace --package-manager node
  sandbox explain --sandbox agent-7 --grant @write:/home/project --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.with(cmd, a, w.permissions(), func(c *client.Client, id string) error {
				explanation, err := c.Explain(cmd.Context(), id, types.Explain{
					Permissions: w.permissions(), AllowedDomains: w.domains, PackageManagers: w.managers, Restrictions: w.restrictions, Home: w.home,
				})
				return show(cmd, asJSON, explanation, err, func(out io.Writer, e types.Explanation) error {
					return printExplanation(out, e, width(out))
				})
			})
		},
	}
	t.flags(a, cmd)
	w.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// printExplanation prints lines of at most so many columns where only the reason has to give way; 0 is
// for no limit.
func printExplanation(out io.Writer, e types.Explanation, columns int) error {
	paths, modes := len("PLACE"), len("MODE")
	for _, place := range e.Places {
		paths, modes = max(paths, len([]rune(printable(place.Path)))), max(modes, len(place.Mode))
	}
	line := func(left int, path, mode, why string) string {
		room := 0
		if columns > 0 {
			room = max(columns-left, 10)
		}
		return fmt.Sprintf("%-*s  %-*s  %s\n", paths, path, modes, mode, fit(why, room))
	}
	text := line(paths+modes+4, "PLACE", "MODE", "WHY")
	for _, place := range e.Places {
		text += line(paths+modes+4, printable(place.Path), place.Mode, printable(place.Why))
	}
	container := "would be made"
	if e.Warm {
		container = "warm"
	}
	text += fmt.Sprintf(`
user       %s, in %s
home       %s: %s
network    %s
events     %s
container  %.12s under %s, %s
`, e.UserID, printable(e.WorkingDir), printable(e.Home), printable(e.HomeWhy), printable(e.Network), printable(e.Events), e.Fingerprint, e.Runtime, container)
	if e.Node != "" {
		text += "host       " + printable(e.Node) + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}
