package version

import (
	"os"
	"regexp"
	"runtime/debug"
	"testing"
	"time"
)

func TestBuildKnowsItsVersion(t *testing.T) {
	commit := []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-11-20T10:00:00Z"},
	}
	for _, tt := range []struct {
		name, linked, module string
		settings             []debug.BuildSetting
		text                 string
	}{
		{"a packager's", "1.2.3-4", "(devel)", commit, "1.2.3-4 (0123456789ab)"},
		{"a checkout", Release, "v0.0.0-20261120100000-0123456789ab+dirty", commit, Release + " (0123456789ab)"},
		{"installed from the module", Release, "v1.2.3", nil, "1.2.3"},
		{"a packager's from the module", "1.2.3-4", "v1.2.3", nil, "1.2.3-4"},
		{"a module of no version", Release, "(devel)", nil, Release},
		{"nothing is known", Release, "", nil, Release},
	} {
		got := read(tt.linked, &debug.BuildInfo{Main: debug.Module{Version: tt.module}, Settings: tt.settings})
		if got.String() != tt.text {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.text)
		}
		if tt.settings != nil && (!got.Modified || !got.Time.Equal(time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC))) {
			t.Errorf("%s: %+v", tt.name, got)
		}
		if got.Go == "" || got.Platform == "" {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// The newest release of the changelog, of this program and of the TypeScript client are one.
func TestReleaseIsTheChangelogs(t *testing.T) {
	for paper, pattern := range map[string]string{
		"CHANGELOG.md":                    `(?m)^## (\d\S*) - \d{4}-\d\d-\d\d$`,
		"clients/typescript/package.json": `"version": "([^"]+)"`,
	} {
		text, err := os.ReadFile("../../" + paper)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil || string(found[1]) != Release {
			t.Errorf("%s has %q, want %s", paper, found, Release)
		}
	}
}
