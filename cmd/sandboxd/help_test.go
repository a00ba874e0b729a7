package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// commandsThatDo are all but those that only hold others, and cobra's own.
func commandsThatDo(cmd *cobra.Command) (list []*cobra.Command) {
	if !cmd.Hidden && (!cmd.HasParent() || !cmd.HasSubCommands()) {
		list = append(list, cmd)
	}
	for _, sub := range cmd.Commands() {
		if name := sub.Name(); name == "completion" || name == "help" {
			continue
		}
		list = append(list, commandsThatDo(sub)...)
	}
	return list
}

// Each command says what it does and shows how, with flags and arguments that it takes.
func TestHelpOfEveryCommand(t *testing.T) {
	all := commandsThatDo(rootCommand())
	if len(all) != 14 {
		t.Errorf("%d commands", len(all))
	}
	for _, cmd := range all {
		if cmd.Short == "" || cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s has no Short, Long or Example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			_, rest, ours := strings.Cut(strings.TrimSpace(line), "sandboxd")
			if !ours {
				t.Errorf("%s: its example runs something else: %s", cmd.CommandPath(), line)
			}
			found, flags, err := rootCommand().Find(strings.Fields(rest))
			if err == nil && found.CommandPath() != cmd.CommandPath() && cmd.HasParent() {
				t.Errorf("%s: its example runs %s", cmd.CommandPath(), found.CommandPath())
			}
			if err == nil {
				found.InitDefaultVersionFlag()
				err = found.ParseFlags(flags)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %s: %v", cmd.CommandPath(), line, err)
			}
		}
	}
}

func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man8")
	root := rootCommand()
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "sandboxd.8"))
	if err != nil || !strings.Contains(string(page), "SIGHUP") {
		t.Errorf("%v: %.300s", err, page)
	}
}
