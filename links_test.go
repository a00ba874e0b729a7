package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)#\s]+)[)#]`)

// Each relative link of a paper leads to a file that there is.
func TestLinksOfPapers(t *testing.T) {
	links := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "bench/*.md", "clients/*/README.md"} {
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

// Each cell of README's comparison has its source, or says that there is none.
func TestSourcesOfTheComparison(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Why not")
	table, _, _ = strings.Cut(table, "\n[")
	cited := regexp.MustCompile(`\]\[(\w+)\]|\]\(\S+\)|not documented|not measured`)
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 7 || strings.TrimSpace(cells[0]) == "" || strings.HasPrefix(line, "|---") {
			continue
		}
		rows++
		measured := strings.Contains(cells[0], "bench/RESULTS.md")
		for _, cell := range cells[1:] {
			found := cited.FindAllStringSubmatch(cell, -1)
			if len(found) == 0 && !measured {
				t.Errorf("%s: %s has no source", cells[0], cell)
			}
			for _, f := range found {
				if f[1] != "" && !strings.Contains(string(text), "\n["+f[1]+"]: https://") {
					t.Errorf("%s: %s: no such source", cells[0], cell)
				}
			}
		}
	}
	if rows != 8 {
		t.Errorf("%d rows were found", rows)
	}
}

var (
	testName = regexp.MustCompile(`(?:\b([a-z0-9]+)'s?\s+)?\b((?:Test|Fuzz|Benchmark)[A-Z]\w*…?)`) // and the package that is said
	// passageEnd ends a paragraph, a point of a list, or a cell: a package that was said before it is forgotten.
	passageEnd = regexp.MustCompile(`\n\n|\n- |\|`)

	testsOf = regexp.MustCompile(`\b([a-z0-9]+)'s (?:\w+ )?tests\b`)
	place   = regexp.MustCompile("`((?:api|client|clients|cmd|config|deploy|dnsfilter|dockerexec|docs|e2e|images|internal|" +
		"pathmap|sandbox-image|scripts|tools)/[\\w/.-]+)`")
)

// Each row of the tables of security names a test that there is in the package that it says, and each place that the papers on
// the code name is there.
func TestPlacesAndTestsOfPromises(t *testing.T) {
	papers, err := filepath.Glob("docs/security/*.md")
	if err != nil {
		t.Fatal(err)
	}
	internals, err := filepath.Glob("docs/internals/*.md")
	if err != nil {
		t.Fatal(err)
	}
	papers = append(append(papers, internals...), "SECURITY.md", "HACKING.md")
	tests, rows := allTests(t), 0
	for _, paper := range papers {
		text, err := os.ReadFile(paper)
		if err != nil {
			t.Fatal(err)
		}
		home := "" // any package
		if strings.HasPrefix(paper, "docs/security/") {
			home = "e2e" // these papers say that they mean it
		}
		for _, problem := range faultsOfPromises(string(text), tests, home) {
			t.Errorf("%s: %s", paper, problem)
		}
		rows += len(rowsWithTests(string(text)))
	}
	if rows < 100 {
		t.Errorf("only %d rows were found", rows)
	}
}

// A row without a test, a test that is gone or another package's, and a file that is gone are told.
func TestFaultsOfPromisesAreFound(t *testing.T) {
	tests := allTests(t)
	for row, want := range map[string]int{
		"it holds | `links_test.go`, `internal/errs/redact.go` | TestUsersAreApart, ids's tests": 0,
		"it holds | `internal/errs/redact.go` | on paper":                                        1,
		"it holds | `internal/errs/gone.go` | TestUsersAreApart":                                 1,
		"it holds | `internal/errs/redact.go` | TestThatIsGone":                                  1,
		"it holds | `internal/errs/redact.go` | gone's tests":                                    1,
		"it holds | on paper | TestUsersAreApart, life's TestHoldersLeaveHalfOfTheTime":          0,
		"it holds | on paper | life's TestHoldersLeaveHalfOfTheTime, TestUsersAreApart":          0,
		"it holds | on paper | life's TestHolders…, rules' TestKeepRepairs, TestKeepDoesNotTire": 0,
		"it holds | on paper | TestHoldersLeaveHalfOfTheTime":                                    1,
		"it holds | on paper | warm's TestHoldersLeaveHalfOfTheTime":                             1,
		"it holds | on paper | life's TestUsersAreApart":                                         1,
		"it holds | on paper | life's TestHolders…, rules' TestUsersAreApart":                    1,
		"life's TestHoldersLeaveHalfOfTheTime | on paper | TestHoldersLeaveHalfOfTheTime":        1,
		"it holds | on paper | TestUsersAreApart; guard's BenchmarkBesideStreams":                1,
	} {
		table := "| promise | kept by | shown by |\n|---|---|---|\n| " + row + " |\n"
		if faults := faultsOfPromises(table, tests, "e2e"); len(faults) != want {
			t.Errorf("%s: %q", row, faults)
		}
	}
}

// faultsOfPromises returns what a paper on security says of tests and places that is not so. A test is in the package said
// before it, or in the paper's home; without a home, one without a package may be in any.
func faultsOfPromises(text string, tests testIndex, home string) []string {
	var faults []string
	for _, found := range place.FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(found[1]); err != nil {
			faults = append(faults, "it names a place that is not there: "+err.Error())
		}
	}
	for _, passage := range passageEnd.Split(text, -1) {
		said := home
		for _, found := range testName.FindAllStringSubmatch(passage, -1) {
			homes := []string{said, home}
			if found[1] != "" {
				said, homes = found[1], found[1:2]
			}
			if !tests.have(found[2], homes) {
				faults = append(faults, fmt.Sprintf("it names %s, which is no test of %q", found[2], homes))
			}
		}
	}
	for _, found := range testsOf.FindAllStringSubmatch(text, -1) {
		if len(tests[found[1]]) == 0 {
			faults = append(faults, "it names tests of "+found[1]+", which has none")
		}
	}
	for _, row := range rowsWithTests(text) {
		shown := row[strings.LastIndex(strings.TrimSuffix(row, "|"), "|"):]
		if !testName.MatchString(shown) && !testsOf.MatchString(shown) && !strings.Contains(shown, "every run of e2e") {
			faults = append(faults, "no test shows this: "+row)
		}
		if strings.Contains(shown, "Benchmark") {
			faults = append(faults, "a benchmark shows nothing: no run of the tests runs it: "+row)
		}
	}
	return faults
}

// rowsWithTests returns the rows of the tables whose last column says which tests show them.
func rowsWithTests(text string) []string {
	var rows []string
	inside := false
	for line := range strings.Lines(text) {
		switch line = strings.TrimSpace(line); {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case strings.HasSuffix(line, "| shown by |"):
			inside = true
		case inside && !strings.HasPrefix(line, "|---"):
			rows = append(rows, line)
		}
	}
	return rows
}

// testIndex has the names of the tests, fuzz targets and benchmarks by the last name of their package.
type testIndex map[string][]string

// have reports whether one of the packages has a test; an empty name stands for all packages, and an ellipsis for the rest of
// the test's name.
func (index testIndex) have(test string, packages []string) bool {
	begin, some := strings.CutSuffix(test, "…")
	for name, tests := range index {
		if !slices.Contains(packages, name) && !slices.Contains(packages, "") {
			continue
		}
		if slices.ContainsFunc(tests, func(has string) bool {
			return has == test || some && strings.HasPrefix(has, begin)
		}) {
			return true
		}
	}
	return false
}

func allTests(t *testing.T) testIndex {
	t.Helper()
	index := testIndex{}
	first := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
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
		owner := filepath.Base(filepath.Dir(name))
		for _, found := range first.FindAllStringSubmatch(string(text), -1) {
			index[owner] = append(index[owner], found[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}
