package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func explainCommand(a *app) *cobra.Command {
	var t target
	var w grantFlags
	var i insideFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain --user USER [--grant TAG]… [--allow-domain NAME]… [--home DIR]",
		Short: "Show what a call would see and reach, and why",
		Long: `explain shows what "sandbox exec" would see with the same grants: each place with what the call may do
there and why, where HOME points and tools keep their state, and what it reaches beyond files. Nothing
is started. With --user and grants that the user has no sandbox for yet, one is registered.

The longest place that contains a path decides about it: "hidden" is neither read nor written, and
"empty" is an empty directory.`,
		Example: `  sandbox explain --user alice
  sandbox explain --user alice --grant @workspace --package-manager node
  sandbox explain --sandbox agent-7 --grant @write:/home/project --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return i.with(cmd, a, t, &w, func(c *client.Client, id string, in types.In) error {
				explanation, err := c.Explain(cmd.Context(), id, types.Explain{
					In: in, Permissions: w.permissions(), AllowedDomains: w.domains,
					PackageManagers: w.managers, Restrictions: w.restrictions, Home: w.home,
				})
				return show(cmd, asJSON, explanation, err,
					func(out io.Writer, e types.Explanation) error {
						return printExplanation(out, e, width(out))
					})
			})
		},
	}
	t.flags(a, cmd)
	w.flags(cmd)
	i.flags(cmd)
	jsonFlag(cmd, &asJSON)
	return cmd
}

// printExplanation prints lines of at most so many columns, for which only the reason is cut; 0
// means no limit.
func printExplanation(out io.Writer, e types.Explanation, columns int) error {
	rows := [][]string{{"PLACE", "MODE", "WHY"}}
	for _, place := range e.Places {
		rows = append(rows, []string{printable(place.Path), place.Mode, printable(place.Why)})
	}
	t := table{columns: columns, widths: make([]int, 2), cut: fit, share: func(int) int {
		return math.MaxInt
	}}
	text := t.lines(rows...)
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
	if len(e.Processes) > 0 {
		text += "processes  " + printable(strings.Join(e.Processes, ", ")) + "\n"
	}
	for _, use := range e.Secrets {
		text += "secret     " + printable(use.Name) + ": " + printable(secretText(use)) + "\n"
	}
	if e.Node != "" {
		text += "host       " + printable(e.Node) + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// secretText says what becomes of a credential.
func secretText(use types.SecretUse) string {
	if use.Unused != "" {
		return "not put in: " + use.Unused
	}
	text := "put into what is sent to " + strings.Join(use.Hosts, ", ")
	if use.Env != "" {
		text += "; " + use.Env + " has its placeholder"
	}
	return text
}
