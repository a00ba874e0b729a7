// Package usage makes a command line explain its usage errors: what is wrong with a call, and what
// the command takes.
package usage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// Explain changes the errors of root and of all commands below it, and returns root, which must be
// complete. A command that only has subcommands refuses any other word; cobra would print its help
// and exit with 0. An error's type is kept, so a command may choose its exit code.
func Explain(root *cobra.Command) *cobra.Command {
	// cobra adds these two only when it executes root, which is too late here. The second captures
	// root's current writer.
	root.InitDefaultHelpCmd()
	out := root.OutOrStdout()
	root.SetOut(outOf{root})
	root.InitDefaultCompletionCmd()
	root.SetOut(out)
	explain(root)
	for _, below := range root.Commands() {
		if below.Name() == "help" {
			below.Args = func(_ *cobra.Command, args []string) error { return topic(root, args) }
		}
	}
	return root
}

// outOf writes to the writer that the command has at the time of the write.
type outOf struct{ cmd *cobra.Command }

func (o outOf) Write(text []byte) (int, error) { return o.cmd.OutOrStdout().Write(text) }

// topic returns an error unless the words name a command. Without it, help would print the page of
// the nearest parent.
func topic(root *cobra.Command, words []string) error {
	for at := root; len(words) > 0; words = words[1:] {
		next, _, err := at.Find(words[:1])
		if err != nil || next == at {
			return Unknown(at, words[0])
		}
		at = next
	}
	return nil
}

func explain(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		explain(below)
	}
	if !cmd.Runnable() && cmd.HasSubCommands() {
		cmd.Args = cobra.NoArgs
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if takes := cmd.Args; takes != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := takes(cmd, args)
			if err != nil && cmd.HasSubCommands() {
				return Unknown(cmd, args[0])
			}
			return withForm(cmd, err)
		}
	}
	flagError := cmd.FlagErrorFunc()
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return withForm(cmd, flagError(cmd, err))
	})
}

// Unknown is the error for a word that is none of cmd's commands.
func Unknown(cmd *cobra.Command, word string) error {
	var known []string
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() {
			known = append(known, below.Name())
		}
	}
	if cmd.HasParent() { // they are few
		return fmt.Errorf("unknown command %q: \"%s\" takes %s\n\"%s --help\" says more", word,
			cmd.CommandPath(), strings.Join(known, ", "), cmd.CommandPath())
	}
	return fmt.Errorf("unknown command %q%s\n\"%s --help\" lists the commands", word,
		strictjson.Nearest(word, known), cmd.CommandPath())
}

// misuse is an error with the usage of the command that was called.
type misuse struct {
	error
	text string
}

func (m misuse) Error() string { return m.text }
func (m misuse) Unwrap() error { return m.error }

func withForm(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	text := err.Error() + remedy(cmd, err)
	if strings.HasPrefix(text, "unknown command") { // cobra.NoArgs says this of any argument
		text = fmt.Sprintf("too many arguments: %s takes none", cmd.CommandPath())
	}
	return misuse{err, fmt.Sprintf("%s\nusage: %s\n\"%s --help\" says more", text, cmd.UseLine(),
		cmd.CommandPath())}
}

// remedy returns what to do about an error of a flag, if that is known.
func remedy(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, "--"+f.Name) })
		return strictjson.Nearest("--"+unknown.GetSpecifiedName(), known)
	case errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "duration":
		return " (a duration has a unit, such as 10s or 5m)"
	default:
		return ""
	}
}
