package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// pathHelp says in each command's help what a PATH is.
const pathHelp = `PATH is relative to the working directory, absolute inside, or from the home as '~/…' (quoted, because the
shell would put your own home there).`

func rmCommand(a *app) *cobra.Command {
	var t target
	var recursive bool
	cmd := &cobra.Command{
		Use:   "rm --user USER [-r] PATH...",
		Short: "Remove files of a sandbox",
		Long: "rm removes files, and with -r directories with all that is in them. Of a symbolic link, it removes the link.\n" +
			pathHelp,
		Example: `  sandbox rm --user alice notes.txt
  sandbox rm --user alice -r '~/node_modules'`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return t.with(cmd, a, nil, func(c *client.Client, id string) error {
			for _, path := range args {
				if err := c.Remove(cmd.Context(), id, path, recursive); err != nil {
					return err
				}
			}
			return nil
		})
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false,
		"also remove directories, with all that is in them")
	t.flags(a, cmd)
	return cmd
}

func mvCommand(a *app) *cobra.Command {
	var t target
	var force bool
	cmd := &cobra.Command{
		Use:   "mv --user USER [-f] FROM TO",
		Short: "Rename a file or directory of a sandbox",
		Long: `mv renames a file or directory within one mount: the home, /tmp and each further mount are mounts. If TO is
a directory, FROM keeps its name in it. A file that exists is replaced only with -f.
FROM and TO are relative to the working directory, absolute inside, or from the home as '~/…'.`,
		Example: `  sandbox mv --user alice draft.txt final.txt
  sandbox mv --user alice -f '~/new.db' '~/data/current.db'`,
		Args: cobra.ExactArgs(2),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return t.with(cmd, a, nil, func(c *client.Client, id string) error {
			from, to := args[0], args[1]
			if isDirectory(cmd.Context(), c, id, to) {
				to = path.Join(to, path.Base(from))
			}
			return c.Move(cmd.Context(), id, from, to, force)
		})
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace a file that TO names")
	t.flags(a, cmd)
	return cmd
}

func mkdirCommand(a *app) *cobra.Command {
	var t target
	var parents bool
	cmd := &cobra.Command{
		Use:     "mkdir --user USER [-p] PATH...",
		Short:   "Make directories in a sandbox",
		Long:    "mkdir makes directories. " + pathHelp,
		Example: `  sandbox mkdir --user alice -p '~/project/data'`,
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := a.client()
		defer c.Close()
		id, err := t.register(cmd.Context(), c, nil)
		if err != nil {
			return err
		}
		for _, path := range args {
			if err := c.Mkdir(cmd.Context(), id, path, parents); err != nil {
				return err
			}
		}
		return nil
	}
	cmd.Flags().BoolVarP(&parents, "parents", "p", false,
		"also make what is missing above it; a directory that exists is no error")
	t.flags(a, cmd)
	return cmd
}

func statCommand(a *app) *cobra.Command {
	var look types.Look
	cmd := &cobra.Command{
		Use:   "stat --user USER [-L] PATH",
		Short: "Show what is at a path of a sandbox",
		Long: "stat shows type, mode, size and time of what is at a path; of a symbolic link, what it says.\n" +
			pathHelp,
		Example: `  sandbox stat --user alice notes.txt`,
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVarP(&look.Follow, "dereference", "L", false,
		"if PATH is a symbolic link, show what it leads to")
	return asks(a, &target{}, cmd,
		func(ctx context.Context, c *client.Client, id string, args []string) (types.Entry, error) {
			look.Target = client.Target(args[0])
			return c.StatEntry(ctx, id, look)
		}, func(out io.Writer, e types.Entry) error {
			name, err := entryName(e)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(out, strings.Join(entryColumns(e, name), "  "))
			return err
		})
}

// entryName returns an entry's name as a terminal can show it: a directory with a slash, a symbolic
// link with what it says.
func entryName(e types.Entry) (string, error) {
	name, err := client.Name(e)
	if err != nil {
		return "", fmt.Errorf("cannot read the service's answer: %w", err)
	}
	leads, err := client.LinkTarget(e)
	if err != nil {
		return "", fmt.Errorf("cannot read the service's answer: %w", err)
	}
	switch name = printable(name); {
	case e.Type == "directory":
		name += "/"
	case leads != "":
		name += " -> " + printable(leads)
	}
	return name, nil
}

func entryColumns(e types.Entry, name string) []string {
	return []string{e.Type, e.Mode, fmt.Sprint(e.Size), e.Mtime.Local().Format(time.DateTime), name}
}
