package life

import (
	"os"
	"strings"
	"testing"
)

// The paper's table has the lines of the code's, in their order.
func TestThePaperShowsTheTable(t *testing.T) {
	text, err := os.ReadFile("../../docs/internals/container.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "## The table")
	rest, _, _ = strings.Cut(rest, "\n## ")
	var shown []string
	for line := range strings.Lines(rest) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 8 || strings.Contains(line, "---") || strings.Contains(line, "By whom |") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[5] == "" && cells[1] != cells[4] || cells[6] == "" {
			t.Errorf("it says neither what is done nor by whom: %s", line)
		}
		shown = append(shown, strings.Join(cells[1:5], "|"))
	}
	for i, line := range table {
		want := strings.Join([]string{line.from.String(), line.on.String(), line.guard.String(), line.to.String()}, "|")
		if i >= len(shown) || shown[i] != want {
			t.Fatalf("line %d of the paper is not %q", i+1, want)
		}
	}
	if len(shown) != len(table) {
		t.Errorf("the paper has %d lines, the code %d", len(shown), len(table))
	}
}
