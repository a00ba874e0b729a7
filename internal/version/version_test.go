package version

import (
	"runtime/debug"
	"testing"
	"time"
)

func TestWhatABuildKnows(t *testing.T) {
	commit := []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-11-20T10:00:00Z"},
	}
	for _, tt := range []struct {
		name, linked, module string
		settings             []debug.BuildSetting
		text                 string
	}{
		{"a release", "v1.2.3", "(devel)", commit, "v1.2.3 (0123456789ab)"},
		{"a checkout", "dev", "v0.0.0-20261120100000-0123456789ab+dirty", commit, "dev (0123456789ab)"},
		{"installed from the module", "dev", "v1.2.3", nil, "v1.2.3"},
		{"a module of no version", "dev", "(devel)", nil, "dev"},
		{"nothing is known", "dev", "", nil, "dev"},
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
