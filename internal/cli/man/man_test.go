package man

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestPages(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "tool", Short: "Do things", Example: "  tool one"}
	root.PersistentFlags().String("socket", "/run/x", "where it is")
	one := &cobra.Command{Use: "one NAME", Short: "Do one", Long: ".hidden is\n'quoted' and C:\\x", Run: run}
	one.Flags().Bool("dry-run", false, "do nothing")
	root.AddCommand(one, &cobra.Command{Use: "secret", Hidden: true, Run: run}, Command("8", "Tools"))
	dir := filepath.Join(t.TempDir(), "man8")
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tool-secret.8")); err == nil {
		t.Error("there is a page of what is hidden")
	}
	for name, want := range map[string][]string{
		"tool.8": {`.TH "TOOL" "8"`, ".SH EXAMPLE\n.nf\n  tool one\n", "tool\\-one(8)"},
		"tool-one.8": {
			"\ntool\\-one \\- Do one\n", "\\&.hidden is\n\\&'quoted' and C:\\ex\n", "\\-\\-dry\\-run", "do nothing",
			".SH OPTIONS OF ALL COMMANDS", "\\-\\-socket", "tool(8)",
		},
	} {
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range want {
			if !strings.Contains(string(page), text) {
				t.Errorf("%s has no %q:\n%s", name, text, page)
			}
		}
	}
}
