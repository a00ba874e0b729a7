package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

func credentialCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "credential",
		Aliases: []string{"credentials"},
		Short:   "Register keys that the service puts into requests, so that no sandbox has them",
		Long: `credential registers keys, tokens and passwords that commands use and never see. The service puts the value
into HTTPS requests to the hosts that the credential is for, of calls that ask for it with
"--grant @secret:NAME". Inside there is only a placeholder, which is worth nothing elsewhere.

Credentials are for callers who may act for every user. In a cluster each host has its own.`,
	}
	cmd.AddCommand(credentialSetCommand(a), credentialListCommand(a), credentialGetCommand(a),
		credentialRmCommand(a))
	return cmd
}

func credentialListCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the credentials",
		Long: `list lists the credentials by name: the hosts they are for, what a request gets, the users who may have them,
and the variable that has the placeholder inside. No command shows a value.`,
		Example: `  sandbox credential list
  sandbox credential list --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := a.client()
			defer c.Close()
			list, err := c.Credentials(cmd.Context())
			return show(cmd, asJSON, list, err, printCredentials)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func credentialGetCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "get NAME",
		Aliases: []string{"show"},
		Short:   "Show everything about a credential but its value",
		Long:    `get shows what a credential is for, how its value is put in, and its placeholder. No command shows a value.`,
		Example: `  sandbox credential get github
  sandbox credential get github --json`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeCredentials(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := a.client()
			defer c.Close()
			got, err := c.Credential(cmd.Context(), args[0])
			return show(cmd, asJSON, got, err, printCredential)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func credentialRmCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME",
		Aliases: []string{"remove", "delete"},
		Short:   "Remove a credential",
		Long: `rm removes a credential with its value. Requests get it no more, also those of commands that run, and calls that
ask for it are refused. Whoever has issued the key still takes it: revoke it there, too.`,
		Example:           `  sandbox credential rm github`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeCredentials(),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := a.client()
			defer c.Close()
			return c.RemoveCredential(cmd.Context(), args[0])
		},
	}
}

// completeCredentials completes one argument with the names of credentials.
func (a *app) completeCredentials() cobra.CompletionFunc {
	names := a.complete(func(ctx context.Context, c *client.Client) (names []string, _ error) {
		list, err := c.Credentials(ctx)
		for _, known := range list {
			names = append(names, known.Name)
		}
		return names, err
	})
	return func(cmd *cobra.Command, args []string,
		word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, args, word)
	}
}

func printCredentials(out io.Writer, list []types.Credential) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tHOSTS\tPUT IN AS\tUSERS\tVARIABLE\tCHANGED")
	for _, c := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s ago\n", printable(c.Name),
			joined(c.Hosts), placeText(c.CredentialPlace), cmp.Or(joined(c.Users), "all"),
			orDash(c.Env), age(c.UpdatedAt))
	}
	return table.Flush()
}

// printCredential prints a line for each thing that is known about a credential.
func printCredential(out io.Writer, c types.Credential) error {
	var text strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%-11s  %s\n", name, value)
		}
	}
	line("name", printable(c.Name))
	line("hosts", joined(c.Hosts))
	line("put in as", placeText(c.CredentialPlace))
	line("methods", cmp.Or(joined(c.Methods), "all"))
	line("paths", cmp.Or(joined(c.Paths), "all"))
	line("users", cmp.Or(joined(c.Users), "all"))
	line("variable", printable(c.Env))
	line("placeholder", printable(c.Placeholder))
	line("created", clock(c.CreatedAt))
	line("changed", clock(c.UpdatedAt))
	_, err := io.WriteString(out, text.String())
	return err
}

// placeText returns what a request gets, with {secret} for the value.
func placeText(p types.CredentialPlace) string {
	switch {
	case p.Header != "":
		return printable(p.Header + ": " + p.Template)
	case p.Basic != "":
		return printable("Basic " + p.Basic + ":{secret}")
	default:
		return printable("?" + p.Query + "={secret}")
	}
}
