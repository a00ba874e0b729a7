package main

import (
	"os"
	"strings"
	"testing"
)

func TestUserRm(t *testing.T) {
	l := newLab(t, nil)
	l.mkdir("kept")
	if got := l.ok("", "user", "rm", "alice"); got != "user alice is removed: sandboxes 2, processes 0, containers 0; the home stays, and --home removes it\n" {
		t.Error(got)
	}
	if _, err := os.Stat(l.host("~/kept")); err != nil {
		t.Error(err)
	}
	if got := l.ok("", "user", "rm", "alice", "--home", "--json"); !strings.Contains(got, `"home": true`) {
		t.Error(got)
	}
	if _, err := os.Stat(l.host("~")); err == nil {
		t.Error("the home is there")
	}
	for user, want := range map[string]string{"alice": `user "alice" has no sandbox, no process and no home here`, "Alice": "upper-case"} {
		if _, _, err := l.run(t.Context(), "", "user", "rm", user); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", user, err)
		}
	}
}
