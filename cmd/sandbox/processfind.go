package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// completeProcesses completes up to so many arguments that are processes; a negative number means
// no limit.
func (t *target) completeProcesses(a *app, limit int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		if limit >= 0 && len(args) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c := a.client()
		defer c.Close()
		var words []cobra.Completion
		for _, p := range t.processes(cmd.Context(), c) {
			if slices.Contains(args, p.ID) {
				continue
			}
			what := printable(p.Name)
			if what == "" {
				what = commandText(p)
			}
			words = append(words, cobra.CompletionWithDesc(p.ID, fit(what, 40)))
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// processes returns those of the flags' user, or none if a sandbox would have to be registered to
// find them.
func (t *target) processes(ctx context.Context, c *client.Client) []types.Process {
	id := t.sandbox
	if id == "" {
		boxes, _ := c.List(ctx)
		at := slices.IndexFunc(boxes, func(box types.Sandbox) bool { return box.UserID == t.user })
		if at < 0 {
			return nil
		}
		id = boxes[at].ID
	}
	list, _ := c.Processes(ctx, id)
	return list
}
