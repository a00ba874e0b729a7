package main

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/warm"
)

// decidedLab keeps what the last command's container may see and reach.
func decidedLab(t *testing.T) (*lab, func() dockerexec.Spec) {
	t.Helper()
	specs := make(chan dockerexec.Spec, 1)
	l := newLab(t, func(_ context.Context, spec dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
		c.Started()
		specs <- spec
		return warm.Result{}, nil
	})
	return l, func() dockerexec.Spec { return <-specs }
}

// TestRestrictionsOfFlags: what the flags take away is in the calls of exec and explain.
func TestRestrictionsOfFlags(t *testing.T) {
	l, decided := decidedLab(t)
	flags := []string{"--user", "alice", "--deny-read", "/home/a", "--deny-read", "/home/b,c", "--deny-write", "/home/d", "--allow-domain", "b.org,c.org", "--deny-domain", "a.c.org,*.b.org"}
	want := types.Restrictions{DenyRead: []string{"/home/a", "/home/b,c"}, DenyWrite: []string{"/home/d"}, DeniedDomains: []string{"a.c.org", "*.b.org"}}
	l.ok("", append(append([]string{"exec"}, flags...), "--", "true")...)
	l.ok("", append([]string{"explain"}, flags...)...)
	var explain types.Explain
	l.asked("explain", &explain)
	if diff := cmp.Diff(want, explain.Restrictions); diff != "" {
		t.Errorf("explain: want (-), got (+):\n%s", diff)
	}
	l.explains(flags, decided())
}

// explains holds that explain tells of the container in which exec has run with the same flags.
func (l *lab) explains(flags []string, spec dockerexec.Spec) {
	l.t.Helper()
	var e types.Explanation
	decode(l.t, l.ok("", append([]string{"explain", "--json"}, flags...)...), &e)
	if e.Fingerprint != string(spec.Fingerprint()) {
		l.t.Errorf("%q: exec does not run in the container that explain tells of", flags)
	}
}
