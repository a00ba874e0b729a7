package mcp

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// An output is cut between characters, and says how much is left out.
func TestClippedBetweenCharacters(t *testing.T) {
	for shift := range 4 {
		var c clipped
		all := strings.Repeat("x", shift) + strings.Repeat("€😀", 10_000)
		if _, err := c.Write([]byte(all)); err != nil {
			t.Fatal(err)
		}
		got := c.String()
		if strings.ContainsRune(got, utf8.RuneError) || len(got) > keptHead+keptTail+200 {
			t.Errorf("shifted by %d: %d bytes, with a cut character %v", shift, len(got), strings.ContainsRune(got, utf8.RuneError))
		}
	}
}

// What a link leads to is within the bounds, too; no grants are not all that the sandbox holds.
func TestFileCallsSeeTheBounds(t *testing.T) {
	for _, tt := range []struct{ grants, want []string }{
		{nil, []string{}},
		{[]string{"@workspace", "@network", "@events", "@write:/data/users/alice/home/out", "@read:/mnt/data"}, []string{"@workspace", "@write:/home/out", "@read:/mnt/data"}},
	} {
		s := &Server{cfg: Config{Bounds: bounds(t, "", "", tt.grants...)}}
		if diff := cmp.Diff(tt.want, s.seeing(false).Permissions); diff != "" {
			t.Error(diff)
		}
	}
}
