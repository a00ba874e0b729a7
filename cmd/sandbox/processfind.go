package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// processID matches ids. Such a word is never taken for a name, so that no name can hide another process's id.
var processID = regexp.MustCompile(`^p-[a-z2-7]{12}$`)

// findProcess returns the id of the process that a person names by its id or its name.
func findProcess(ctx context.Context, c *client.Client, id, word string) (string, error) {
	if processID.MatchString(word) {
		return word, nil
	}
	list, err := c.Processes(ctx, id)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, p := range list {
		if p.Name == word && word != "" {
			ids = append(ids, p.ID)
		}
	}
	switch len(ids) {
	case 1:
		return ids[0], nil
	case 0:
		return "", fmt.Errorf("no process has the id or the name %q; \"sandbox process list\" shows all processes", word)
	default:
		return "", fmt.Errorf("%d processes have the name %q: give an id, which is one of %s", len(ids), word, strings.Join(ids, ", "))
	}
}

// completeProcesses completes up to so many arguments that are processes; a negative number means no limit.
func (t *target) completeProcesses(a *app, most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if most >= 0 && len(args) >= most {
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

// processes returns those of the flags' user, or none if a sandbox would have to be registered to find them.
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
