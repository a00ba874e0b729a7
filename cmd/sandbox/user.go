package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func userCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "user",
		Aliases: []string{"users"},
		Short:   "Remove users",
		Long:    `user removes users. A user comes into being with the first sandbox: "sandbox exec --user alice" makes one.`,
	}
	cmd.AddCommand(userRmCommand(a))
	return cmd
}

func userRmCommand(a *app) *cobra.Command {
	var home, asJSON bool
	cmd := &cobra.Command{
		Use:     "rm USER",
		Aliases: []string{"remove", "delete"},
		Short:   "End and remove everything of a user",
		Long: `rm ends everything of a user, commands, durable processes and containers, and removes it: the processes with
their logs, and the sandboxes, of whichever caller. The user's home stays on the host; with --home it
goes, too, with all that the user has there. Calls for the user are refused meanwhile.

It tells on stderr what has ended. If it fails half-way, it says so: run it again, and it goes on.`,
		Example: `  sandbox user rm alice
  sandbox user rm alice --home`,
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.complete(
			ofSandboxes(func(box types.Sandbox) string { return box.UserID })),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := a.client()
			defer c.Close()
			follow := client.EventQuery{UserID: args[0],
				Kinds: []types.ServiceKind{types.ServiceProcess, types.ServiceContainer}}
			finish := tellRemovals(cmd.Context(),
				func(ctx context.Context) iter.Seq2[types.ServiceEvent, error] {
					return c.Events(ctx, follow)
				}, cmd.ErrOrStderr())
			removed, err := c.RemoveUser(cmd.Context(), args[0], home)
			finish(removed)
			return show(cmd, asJSON, removed, err, printRemovedUser)
		},
	}
	cmd.Flags().BoolVar(&home, "home", false,
		"remove the user's home, too, and all else that the user has on the host")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// lastRemovals is how long the events of what is removed may come after the answer.
const lastRemovals = time.Second

// tellRemovals prints which processes and containers are removed, as the events of a user tell,
// until the caller calls finish. That waits for the events of all that was removed, for a bounded
// time.
func tellRemovals(ctx context.Context,
	events func(context.Context) iter.Seq2[types.ServiceEvent, error],
	to io.Writer) (finish func(types.RemovedUser)) {
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	var processes, containers atomic.Int64
	begun, told := make(chan struct{}), make(chan struct{}, 1)
	telling.Go(func() {
		defer cancel()
		begin := sync.OnceFunc(func() { close(begun) })
		defer begin()
		for event, err := range events(ctx) {
			begin()
			switch {
			case err != nil:
				return // the removal itself says what is wrong
			case event.Process != nil && event.Process.Status == "removed":
				fmt.Fprintf(to, "removed process %s %s\n", printable(event.Process.ID),
					printable(event.Process.Name))
				processes.Add(1)
			case event.Container != nil && event.Container.State == "removed":
				fmt.Fprintf(to, "removed container %s\n", printable(event.Container.Name))
				containers.Add(1)
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	})
	<-begun
	return func(removed types.RemovedUser) {
		defer telling.Wait()
		defer cancel()
		late := time.After(lastRemovals)
		for processes.Load() < int64(removed.Processes) ||
			containers.Load() < int64(removed.Containers) {
			select {
			case <-told:
			case <-ctx.Done(): // there are no more events
				return
			case <-late:
				return
			}
		}
	}
}

func printRemovedUser(out io.Writer, r types.RemovedUser) error {
	home := "the home stays, and --home removes it"
	if r.Home {
		home = "and the home"
	}
	_, err := fmt.Fprintf(out,
		"user %s is removed: sandboxes %d, processes %d, containers %d; %s\n", r.UserID,
		r.Sandboxes, r.Processes, r.Containers, home)
	return err
}
