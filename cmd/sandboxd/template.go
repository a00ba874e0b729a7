package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/engine"
)

func templateCommand(settings *string) *cobra.Command {
	root := &cobra.Command{
		Use:   "template",
		Short: "Say what sandboxes of E2B's clients can be made from",
		Long: `template edits e2b.templates in the settings file; everything else in the file, including comments, stays as it is.
A running service applies the change on SIGHUP (systemctl reload).`,
	}
	list := &cobra.Command{
		Use: "list", Short: "List the templates", Args: cobra.NoArgs,
		Long:    "list prints the templates of the settings, with their images and start commands.",
		Example: `  sandboxd template list`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadConfig(*settings)
			if err != nil {
				return err
			}
			return listTemplates(cmd.OutOrStdout(), cfg.E2B.Templates)
		},
	}
	remove := &cobra.Command{
		Use: "remove NAME", Short: "Remove a template", Args: cobra.ExactArgs(1),
		Long:    "remove removes a template from the settings. Its image and the sandboxes that were made from it stay.",
		Example: `  sandboxd template remove node`,
		RunE: func(_ *cobra.Command, args []string) error {
			return editSettings(*settings, false, func(text []byte) ([]byte, error) {
				return config.RemoveE2BTemplate(text, args[0])
			})
		},
	}
	root.AddCommand(addTemplateCommand(settings), list, remove)
	return root
}

func addTemplateCommand(settings *string) *cobra.Command {
	var t config.E2BTemplate
	var memory string
	add := &cobra.Command{
		Use:   "add NAME IMAGE",
		Short: "Add a template, and pull its image if Docker does not have it",
		Long: `add lets Docker pull IMAGE, if Docker does not have it, and adds the template NAME to the settings. Flags say what
its sandboxes get and run; docs/settings.md lists what else a template may have.`,
		Example: `  sandboxd template add node node:24
  sandboxd template add web python:3 --start=./serve --ready=./is-ready`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			t.Image = args[1]
			if memory != "" {
				if err := t.Memory.UnmarshalJSON([]byte(fmt.Sprintf("%q", memory))); err != nil {
					return fmt.Errorf("--memory: %w", err)
				}
			}
			err = withImage(cmd.Context(), *settings, func(ctx context.Context, i target) error {
				return pullMissing(ctx, i.docker, t.Image, cmd.OutOrStdout())
			})
			if err != nil {
				return err
			}
			return editSettings(*settings, true, func(text []byte) ([]byte, error) {
				return config.AddE2BTemplate(text, args[0], t)
			})
		},
	}
	add.Flags().Float64Var(&t.CPUs, "cpus", 0, "CPUs of a sandbox (default: limits.cpus)")
	add.Flags().StringVar(&memory, "memory", "",
		"memory of a sandbox, such as 2Gi (default: limits.memory)")
	add.Flags().StringToStringVar(&t.Env, "env", nil, "variables, as NAME=VALUE")
	add.Flags().StringVar(&t.Start, "start", "",
		"a command line that runs in each sandbox and keeps running")
	add.Flags().StringVar(&t.Ready, "ready", "",
		"a command line that exits with 0 when the sandbox is ready")
	return add
}

func listTemplates(out io.Writer, all map[string]config.E2BTemplate) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tIMAGE\tSTART")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(table, "%s\t%s\t%s\n", name, all[name].Image, all[name].Start)
	}
	return table.Flush()
}

// editSettings edits the settings file and keeps its mode. It makes a missing file if create is
// set.
func editSettings(named string, create bool, edit func([]byte) ([]byte, error)) error {
	_, file, err := config.Find(named, os.Environ(), nil)
	if err != nil && !(create && errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	if file == "" {
		file = config.DefaultFile
	}
	mode := fs.FileMode(0o644)
	text, err := os.ReadFile(file)
	switch {
	case err == nil:
		var info fs.FileInfo
		if file, err = filepath.EvalSymlinks(file); err != nil {
			return err
		}
		if info, err = os.Stat(file); err == nil {
			mode = info.Mode().Perm()
		}
	case create && errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err == nil {
		text, err = edit(text)
	}
	if err == nil {
		err = durable.WriteFile(file, text, mode)
	}
	if err != nil {
		return fmt.Errorf("cannot change %s: %w", file, err)
	}
	return nil
}

// pullMissing pulls an image that Docker does not have.
func pullMissing(ctx context.Context, docker *engine.Client, ref string, out io.Writer) error {
	_, err := images.NewFinder(docker, ref).Find(ctx)
	if cerrdefs.IsFailedPrecondition(err) { // the image is missing
		err = images.Pull(ctx, docker, ref, out)
	}
	return err
}
