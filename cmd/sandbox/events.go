package main

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func eventsCommand(a *app) *cobra.Command {
	var q client.EventQuery
	var kinds []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "events [flags]",
		Short: "Follow what happens: calls, containers, processes, decisions and hosts",
		Long: `events prints each event in a line as it happens: calls that begin, run and end, containers that are made, frozen and
removed, durable processes that start and end, what calls tried to reach, and in a cluster changes of hosts (node) and
which host holds a user (seat). It ends when it is interrupted (exit code 130) or the service stops (exit code 125).

With --replay it begins with the earlier events that the service has kept, and with --after, which takes the id of an
event of --json, after that event.`,
		Example: `  sandbox events
  sandbox events --user alice --kind call,decision
  sandbox events --replay --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, kind := range kinds {
				q.Kinds = append(q.Kinds, types.ServiceKind(kind))
			}
			c := a.client()
			defer c.Close()
			events := func(ctx context.Context) iter.Seq2[types.ServiceEvent, error] {
				return c.Events(ctx, q)
			}
			return follow(cmd, asJSON, events, func(e types.ServiceEvent) error {
				switch e.Kind {
				case types.ServiceOpen:
					return nil
				case types.ServiceGap:
					_, err := fmt.Fprintln(cmd.ErrOrStderr(),
						"sandbox: events may be missing here: they are not kept any more, or the service was restarted")
					return err
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), eventLine(e))
				return err
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&q.UserID, "user", "u", "", "events of this user")
	flags.StringSliceVar(&kinds, "kind", nil,
		"events of these kinds: call, container, process, decision, node, seat")
	flags.BoolVar(&q.Replay, "replay", false, "begin with the events that are kept")
	flags.StringVar(&q.After, "after", "", "begin after the event with this id")
	jsonFlag(cmd, &asJSON)
	a.completeUsers(cmd)
	_ = cmd.RegisterFlagCompletionFunc("kind",
		cobra.FixedCompletions([]string{"call", "container", "process", "decision", "node", "seat"},
			cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("after", cobra.NoFileCompletions)
	return cmd
}

// eventLine returns an event as a line for a person.
func eventLine(e types.ServiceEvent) string {
	words := []string{e.Time.Local().Format(time.TimeOnly), orDash(e.UserID), string(e.Kind)}
	switch {
	case e.Call != nil:
		words = append(words, fmt.Sprintf("%d %s", e.Call.ID, callWords(*e.Call)))
	case e.Container != nil:
		words = append(words, e.Container.State, e.Container.Name)
	case e.Process != nil:
		words = append(words, e.Process.Status, e.Process.ID, printable(e.Process.Name))
	case e.Decision != nil:
		words = append(words, string(e.Decision.Verdict), string(e.Decision.Via),
			orDash(e.Decision.Name), printable(e.Decision.Reason))
	case e.Node != nil:
		words = append(words, e.Node.State, e.Node.Name)
	case e.Seat != nil && e.Seat.From != "":
		words = append(words, "taken over by "+e.Seat.Node+" from "+e.Seat.From)
	case e.Seat != nil:
		words = append(words, "held by "+e.Seat.Node)
	}
	return strings.TrimSpace(strings.Join(words, "  "))
}

func callWords(c types.CallEvent) string {
	switch c.Phase {
	case "began":
		return strings.TrimSpace("began " + fit(printable(c.Command), 80) + "  " +
			printable(c.Grants) + " " + printable(c.Network))
	case "ended":
		return strings.Join(strings.Fields(
			fmt.Sprintf("ended %s %s after %.0f ms %s", c.Outcome, c.Way, c.TotalMs, c.Reason)),
			" ")
	default:
		return "running in " + c.Container
	}
}
