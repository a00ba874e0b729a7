package mcp

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
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

// An allowed name that cannot be reached is not called refused.
func TestUnreachableNamesAreNotCalledRefused(t *testing.T) {
	got := resultText("", "", types.Result{EgressMore: 2, Egress: []types.Refusal{
		{Name: "a.org", Verdict: types.VerdictFailed, Via: "dns", Reason: "no such name"},
		{Name: "b.org", Port: 22, Verdict: types.VerdictDenied, Via: "tcp", Reason: "no open port"},
	}}, nil)
	const want = `[exit code 0, nothing printed]
[network: "a.org" could not be reached (dns): no such name]
[network: "b.org" at port 22 was refused (tcp): no open port]
[network: 2 more names could not be reached]`
	if got != want {
		t.Errorf("%s, want %s", got, want)
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
