package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/version"
)

// defaultSocket is where sandboxd listens unless told otherwise.
const defaultSocket = "/run/daycare-sandbox/sandboxd.sock"

// app is what all commands share.
type app struct{ socket string }

func (a *app) client() *client.Client { return client.New(a.socket) }

func rootCommand() *cobra.Command {
	a := &app{}
	root := &cobra.Command{
		Use:   "sandbox",
		Short: "Run commands in gVisor sandboxes",
		Long: `sandbox runs commands in a user's gVisor sandbox, keeps durable processes there, and reads and writes
its files, through the service sandboxd.

The service is found at --socket, or $SANDBOX_SOCKET.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	socket := os.Getenv("SANDBOX_SOCKET")
	if socket == "" {
		socket = defaultSocket
	}
	root.PersistentFlags().StringVar(&a.socket, "socket", socket, "the service's socket")
	root.AddCommand(execCommand(a), explainCommand(a), readCommand(a), writeCommand(a), lsCommand(a), cpCommand(a), psCommand(a), processCommand(a), egressCommand(a), healthCommand(a), versionCommand(a))
	return root
}

func psCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the containers that are warm",
		Example: `  sandbox ps
  sandbox ps --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			containers, err := a.client().Containers(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), containers)
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "USER\tSTATE\tCOMMANDS\tRUNTIME\tUP\tLAST USED\tCONTAINER")
			for _, c := range containers {
				fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s ago\t%s\n", c.UserID, c.State, c.Commands, c.Runtime,
					age(c.CreatedAt), age(c.LastUsedAt), c.Name)
			}
			return table.Flush()
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func age(t time.Time) string { return max(time.Since(t), 0).Round(time.Second).String() }

func healthCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether commands can run, and if not, why",
		Long:  "health says whether commands can run now. It exits with 1 when they cannot.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := a.client().Health(cmd.Context())
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			switch {
			case asJSON:
				err = printJSON(out, h)
			case h.Problem != "":
				_, err = fmt.Fprintf(out, "status:  %s\nproblem: %s\n", h.Status, h.Problem)
			default:
				_, err = fmt.Fprintf(out, "status:  %s\nversion: %s\nengine:  %s\nruntime: %s\nimage:   %s\n", h.Status, h.Version, h.Engine, h.Runtime, h.Image)
			}
			for _, warning := range h.Warnings {
				if err == nil && !asJSON {
					_, err = fmt.Fprintf(out, "warning: %s\n", printable(warning))
				}
			}
			if err == nil && h.Problem != "" {
				return exitCode(1)
			}
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func versionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this command and of the service",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			fmt.Fprintln(out, "sandbox: ", version.String())
			h, err := a.client().Health(cmd.Context())
			if err != nil {
				fmt.Fprintln(out, "sandboxd: not reachable at", a.socket)
				return nil
			}
			fmt.Fprintln(out, "sandboxd:", h.Version)
			return nil
		},
	}
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}

func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
