package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// TestRestrictionsOfFlags: what the flags take away is in the calls of exec and explain.
func TestRestrictionsOfFlags(t *testing.T) {
	l := newLab(t)
	l.exec = func(sandbox.Request, dockerexec.Output) (sandbox.Result, error) {
		return sandbox.Result{Cwd: "/home"}, nil
	}
	flags := []string{"--user", "alice", "--deny-read", "/home/a", "--deny-read", "/home/b,c", "--deny-write", "/home/d", "--deny-domain", "a.org,*.b.org"}
	want := sandbox.Restrictions{DenyRead: []string{"/home/a", "/home/b,c"}, DenyWrite: []string{"/home/d"}, DeniedDomains: []string{"a.org", "*.b.org"}}
	l.ok("", append(append([]string{"exec"}, flags...), "--", "true")...)
	if diff := cmp.Diff(want, l.asked.Restrictions); diff != "" {
		t.Errorf("exec: want (-), got (+):\n%s", diff)
	}
	l.ok("", append([]string{"explain"}, flags...)...)
	if diff := cmp.Diff(want, l.explained.Restrictions); diff != "" {
		t.Errorf("explain: want (-), got (+):\n%s", diff)
	}
}
