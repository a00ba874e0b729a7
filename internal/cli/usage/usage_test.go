package usage_test

import (
	"errors"
	"io"
	"testing"

	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/internal/cli/usage"
)

var errOwn = errors.New("own")

func tree() *cobra.Command {
	done := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "box", SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs, RunE: done}
	group := &cobra.Command{Use: "node", Short: "Hosts"}
	drain := &cobra.Command{Use: "drain HOST", Args: cobra.ExactArgs(1), RunE: done}
	drain.Flags().String("user", "", "")
	drain.Flags().Duration("timeout", 0, "")
	own := &cobra.Command{Use: "own", Args: func(*cobra.Command, []string) error { return errOwn }, RunE: done}
	group.AddCommand(drain, &cobra.Command{Use: "list", Args: cobra.NoArgs, RunE: done}, own)
	root.AddCommand(group)
	root.SetOut(io.Discard)
	return usage.Explain(root)
}

func TestEachSlipIsAnErrorThatSaysWhatIsTaken(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"node"}, ""},
		{[]string{"node", "drain", "a"}, ""},
		{[]string{"node", "--help"}, ""},
		{[]string{"nod"}, "unknown command \"nod\" (did you mean node?)\n\"box --help\" lists the commands"},
		{[]string{"node", "drian", "a"}, "unknown command \"drian\": \"box node\" takes drain, list, own\n\"box node --help\" says more"},
		{[]string{"completion", "bash"}, ""},
		{[]string{"completion", "bsh"}, "unknown command \"bsh\": \"box completion\" takes bash, fish, powershell, zsh\n\"box completion --help\" says more"},
		{[]string{"help"}, ""},
		{[]string{"help", "node", "drain"}, ""},
		{[]string{"help", "nod"}, "unknown command \"nod\" (did you mean node?)\n\"box --help\" lists the commands"},
		{[]string{"help", "node", "drian"}, "unknown command \"drian\": \"box node\" takes drain, list, own\n\"box node --help\" says more"},
		{[]string{"node", "drain"}, "accepts 1 arg(s), received 0\nusage: box node drain HOST [flags]\n\"box node drain --help\" says more"},
		{[]string{"node", "list", "a"}, "too many arguments: box node list takes none\nusage: box node list [flags]\n\"box node list --help\" says more"},
		{[]string{"node", "drain", "--usr", "a"}, "unknown flag: --usr (did you mean --user?)\nusage: box node drain HOST [flags]\n\"box node drain --help\" says more"},
		{[]string{"node", "drain", "--timeout", "9"}, "invalid argument \"9\" for \"--timeout\" flag: time: missing unit in duration \"9\" (a duration has a unit, such as 10s or 5m)\nusage: box node drain HOST [flags]\n\"box node drain --help\" says more"},
		{[]string{"node", "drain", "-q"}, "unknown shorthand flag: 'q' in -q\nusage: box node drain HOST [flags]\n\"box node drain --help\" says more"},
	} {
		root := tree()
		root.SetArgs(tt.args)
		got := ""
		if err := root.Execute(); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%q:\n%s\nwant\n%s", tt.args, got, tt.want)
		}
	}
}

func TestAnErrorKeepsItsType(t *testing.T) {
	root := tree()
	root.SetArgs([]string{"node", "own"})
	if err := root.Execute(); !errors.Is(err, errOwn) {
		t.Errorf("%v", err)
	}
}
