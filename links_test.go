package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)#\s]+)[)#]`)

// Each relative link of a paper leads to a file that there is.
func TestLinksOfPapers(t *testing.T) {
	links := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "bench/*.md", "clients/*/README.md"} {
		papers, err := filepath.Glob(pattern)
		if err != nil || len(papers) == 0 {
			t.Fatalf("%s: %v, %v", pattern, papers, err)
		}
		for _, paper := range papers {
			text, err := os.ReadFile(paper)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range link.FindAllStringSubmatch(string(text), -1) {
				if strings.Contains(found[1], "://") {
					continue
				}
				links++
				if _, err := os.Stat(filepath.Join(filepath.Dir(paper), found[1])); err != nil {
					t.Errorf("%s links to %s: %v", paper, found[1], err)
				}
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links were found", links)
	}
}
