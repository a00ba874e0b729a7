package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func egressCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "egress",
		Short: "Show what calls reach over the network",
	}
	cmd.AddCommand(egressLogCommand(a))
	return cmd
}

// logFlags are the flags of `sandbox egress log`.
type logFlags struct {
	query          client.DecisionQuery
	verdict, via   string
	since          string
	limit          int
	follow, asJSON bool
}

func egressLogCommand(a *app) *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use:   "log [flags]",
		Short: "List what calls tried to reach, and what became of it",
		Long: `log lists the latest egress decisions, oldest first: who asked for which name, the verdict and the
reason. Attempts that differ only in their time are one line with a count.

With --follow it then prints each decision as it is made, until it is interrupted (exit code 130) or the
service stops (exit code 125). To fit the terminal, a long name loses its beginning; --json has everything,
with --follow as one object on each line.`,
		Example: `  sandbox egress log
  sandbox egress log -f --user alice --verdict denied
  sandbox egress log --name example.org --since 10m --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := f.decisions(cmd.Flags().Changed("limit"), time.Now())
			if err != nil {
				return err
			}
			c := a.client()
			defer c.Close()
			if f.follow {
				return followDecisions(cmd, c, q, f.asJSON)
			}
			list, err := c.AllDecisions(cmd.Context(), q)
			tellUnanswered(cmd, list.Unanswered, "decisions")
			return show(cmd, f.asJSON, list.Decisions, err,
				func(out io.Writer, list []types.Decision) error {
					return newDecisionTable(out).print(list...)
				})
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "then print each decision as it is made")
	flags.StringVarP(&f.query.UserID, "user", "u", "", "decisions about this user's calls")
	flags.StringVar(&f.query.Container, "container", "",
		"decisions about this container, by its name in \"sandbox ps\"")
	flags.StringVar(&f.verdict, "verdict", "",
		"decisions with this verdict: allowed, denied, failed, limited or malformed")
	flags.StringVar(&f.via, "via", "", "decisions about dns, tls, http, tcp or udp, or about credential:NAME")
	flags.StringVar(&f.query.Name, "name", "", "decisions about this name and all names below it")
	flags.StringVar(&f.since, "since", "",
		"decisions since a duration ago, such as 10m, or since a time, such as 2026-01-02T15:04:05Z")
	flags.IntVarP(&f.limit, "limit", "n", 0,
		"at most this many, the latest ones, up to 1000; with --follow, of those made so far (default 100)")
	jsonFlag(cmd, &f.asJSON)
	for flag, words := range map[string][]string{
		"verdict": {"allowed", "denied", "failed", "limited", "malformed"},
		"via":     {"dns", "tls", "http", "tcp", "udp"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag,
			cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	a.completeUsers(cmd)
	for _, flag := range []string{"container", "name", "since", "limit"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
	return cmd
}

// decisions turns the flags into a query of the API.
func (f logFlags) decisions(limited bool, now time.Time) (client.DecisionQuery, error) {
	q := f.query
	q.Verdict, q.Via = types.Verdict(f.verdict), types.Via(f.via)
	if limited {
		q.Limit = &f.limit
	}
	if f.since == "" {
		return q, nil
	}
	if ago, err := time.ParseDuration(f.since); err == nil && ago >= 0 {
		q.Since = now.Add(-ago)
		return q, nil
	}
	if err := q.Since.UnmarshalText([]byte(f.since)); err != nil {
		return q, fmt.Errorf(
			"--since %q is neither a duration, such as 10m, nor a time, such as 2026-01-02T15:04:05Z",
			f.since)
	}
	return q, nil
}

func followDecisions(cmd *cobra.Command, c *client.Client, q client.DecisionQuery,
	asJSON bool) error {
	table := newDecisionTable(cmd.OutOrStdout())
	events := func(ctx context.Context) iter.Seq2[types.DecisionEvent, error] {
		return c.FollowDecisions(ctx, q)
	}
	return follow(cmd, asJSON, events, func(event types.DecisionEvent) error {
		if event.Decision == nil {
			_, err := fmt.Fprintf(cmd.ErrOrStderr(),
				"sandbox: %d decisions are left out here: they came faster than they could be printed\n",
				event.Lost)
			return err
		}
		return table.print(*event.Decision)
	})
}

// follow prints events until they end, each with print or as a line of JSON. If it is interrupted,
// it returns exit code 130.
func follow[Event any](cmd *cobra.Command, asJSON bool,
	events func(context.Context) iter.Seq2[Event, error], print func(Event) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	if asJSON {
		lines := json.NewEncoder(cmd.OutOrStdout())
		print = func(event Event) error { return lines.Encode(event) }
	}
	for event, err := range events(ctx) {
		if err != nil && ctx.Err() != nil {
			return exitCode(128 + int(unix.SIGINT))
		}
		if err == nil {
			err = print(event)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
