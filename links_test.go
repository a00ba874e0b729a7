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

var (
	testName = regexp.MustCompile(`\bTest[A-Z]\w*…?`)
	goFile   = regexp.MustCompile("`([a-z][\\w/]*\\.go)`")
)

// Each promise of SECURITY.md names the place that keeps it and the test that shows it: these are there.
func TestPlacesAndTestsOfPromises(t *testing.T) {
	text, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range goFile.FindAllStringSubmatch(string(text), -1) {
		if _, err := os.Stat(found[1]); err != nil {
			t.Errorf("SECURITY.md names a file that is not there: %v", err)
		}
	}
	tests := allTests(t)
	for _, name := range testName.FindAllString(string(text), -1) {
		begin, some := strings.CutSuffix(name, "…") // several with this beginning
		if !some {
			begin += "("
		}
		if !strings.Contains(tests, "func "+begin) {
			t.Errorf("SECURITY.md names %s, and there is no such test", name)
		}
	}
}

// allTests returns the first lines of all tests.
func allTests(t *testing.T) string {
	t.Helper()
	var tests strings.Builder
	declared := regexp.MustCompile(`(?m)^func Test\w+\(`)
	err := filepath.WalkDir(".", func(name string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == ".git"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(name)
		for _, first := range declared.FindAll(text, -1) {
			tests.Write(first)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests.String()
}
