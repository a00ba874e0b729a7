// Package man writes the manual pages of a command line. cobra's own package imports a Markdown
// parser, whose initialization would slow down the start of each command.
package man

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// Command returns `man DIR`, for packagers: it writes a page of the given section for each command,
// as in `sandbox man /usr/share/man/man1`. title is the heading of the pages.
func Command(section, title string) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages of all commands to a folder",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("cannot make the folder of the manual pages: %w", err)
			}
			return write(cmd.Root(), args[0], section, title)
		},
	}
}

// write writes the pages of a command and of its subcommands.
func write(cmd *cobra.Command, dir, section, title string) error {
	name := filepath.Join(dir, pageName(cmd)+"."+section)
	if err := os.WriteFile(name, []byte(page(cmd, section, title)), 0o644); err != nil {
		return fmt.Errorf("cannot write a manual page: %w", err)
	}
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() {
			if err := write(below, dir, section, title); err != nil {
				return err
			}
		}
	}
	return nil
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// page returns a command's page in roff, with the line breaks of the help.
func page(cmd *cobra.Command, section, title string) string {
	cmd.InitDefaultHelpFlag()
	var b strings.Builder
	fmt.Fprintf(&b, ".nh\n.TH %q %q \"\" \"daycare-sandbox\" %q\n", strings.ToUpper(pageName(cmd)),
		section, title)
	about := cmd.Long
	if about == "" {
		about = cmd.Short
	}
	for _, part := range []struct{ head, text string }{
		{"NAME", pageName(cmd) + " - " + cmd.Short},
		{"SYNOPSIS", cmd.UseLine()},
		{"DESCRIPTION", about},
		{"OPTIONS", cmd.NonInheritedFlags().FlagUsages()},
		{"OPTIONS OF ALL COMMANDS", cmd.InheritedFlags().FlagUsages()},
		{"EXAMPLE", cmd.Example},
		{"SEE ALSO", seeAlso(cmd, section)},
	} {
		if text := strings.Trim(part.text, "\n"); text != "" {
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", part.head, escape(text))
		}
	}
	return b.String()
}

// seeAlso returns the names of the pages of the parent and of the subcommands.
func seeAlso(cmd *cobra.Command, section string) string {
	var pages []string
	if cmd.HasParent() {
		pages = append(pages, pageName(cmd.Parent())+"("+section+")")
	}
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() {
			pages = append(pages, pageName(below)+"("+section+")")
		}
	}
	return strings.Join(pages, "\n")
}

// escape keeps roff from reading commands in a text: a backslash anywhere, and a period or a quote
// at the start of a line.
func escape(text string) string {
	text = strings.ReplaceAll(text, `\`, `\e`)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "\n"), "-", `\-`)
}
