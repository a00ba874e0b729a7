package main

import (
	"slices"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

func TestWarmAsksForTheCallsContainer(t *testing.T) {
	l := newLab(t, nil)
	for _, tt := range []struct {
		args, want []string
	}{
		{nil, []string{}},
		{[]string{"--grant", "@workspace"}, []string{"@workspace"}},
		{[]string{"--grant", "@workspace", "--grant", "@write:/home/x"}, []string{"@workspace", "@write:/home/x"}},
	} {
		l.ok("", append([]string{"warm", "--user", "alice"}, tt.args...)...)
		id, _ := needs("alice", tt.want)
		var asked types.Registration
		l.asked(id, &asked)
		if asked.Warm == nil || !slices.Equal(asked.Warm, tt.want) {
			t.Errorf("%q: asked for %#v", tt.args, asked.Warm)
		}
	}
}
