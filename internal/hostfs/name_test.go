package hostfs

import (
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

var names = []struct{ name, fault string }{
	{".", ""},
	{"a", ""},
	{"a/b", ""},
	{"...", ""},
	{"..a/b..", ""},
	{"\xff\xfe", ""},
	{"~", ""},
	{strings.Repeat("a", 4096), ""},
	{"", "empty"},
	{"/", "not relative"},
	{"/etc/passwd", "not relative"},
	{"..", "out of the root"},
	{"../a", "out of the root"},
	{"a/../b", "not clean"},
	{"a/..", "not clean"},
	{"a/.", "not clean"},
	{"./a", "not clean"},
	{"a//b", "not clean"},
	{"a/", "not clean"},
	{"a\x00b", "NUL"},
	{strings.Repeat("a", 4097), "4097 bytes"},
}

func TestCheckName(t *testing.T) {
	for _, tt := range names {
		err := checkName(tt.name)
		if tt.fault == "" && err != nil {
			t.Errorf("%.20q: %v", tt.name, err)
		}
		if tt.fault != "" && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.fault)) {
			t.Errorf("%.20q: %v, want %q", tt.name, err, tt.fault)
		}
	}
}

func TestWithin(t *testing.T) {
	tests := []struct {
		name, dir string
		want      bool
	}{
		{"a", "a", true}, {"a/b", "a", true}, {"ab", "a", false}, {"a", "a/b", false}, {"a", ".", true},
		{"user10", "user1", false}, {".", "a", false},
	}
	for _, tt := range tests {
		if got := within(tt.name, tt.dir); got != tt.want {
			t.Errorf("within(%q, %q) = %v", tt.name, tt.dir, got)
		}
	}
}

// FuzzCheckName checks that what is accepted stays beneath the root when it is taken by name, and that
// it falls apart and together again.
func FuzzCheckName(f *testing.F) {
	for _, tt := range names {
		f.Add(tt.name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if err := checkName(name); err != nil {
			if !errdefs.IsInvalidArgument(err) || len(err.Error()) > 1100 {
				t.Fatalf("%d bytes of class %v", len(err.Error()), err)
			}
			return
		}
		if !filepath.IsLocal(name) || filepath.Clean(name) != name || strings.Contains(name, "\x00") {
			t.Fatalf("%q was accepted", name)
		}
		if dir := path.Dir(name); !within(name, dir) || checkName(dir) != nil {
			t.Fatalf("%q is in %q", name, dir)
		}
	})
}
