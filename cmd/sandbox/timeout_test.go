package main

import (
	"strings"
	"testing"
)

// A timeout that is too long is refused in the terms of the flags, with what to use instead; the
// help says so before.
func TestTimeoutThatIsTooLong(t *testing.T) {
	l := newLab(t, nil) // where a call may take a minute
	_, _, err := l.run(t.Context(), "", "exec", "-u", "alice", "--timeout", "2m", "--", "true")
	const want = `--timeout 2m0s is more than 1m0s, the most that a call may take here: start what takes longer with "sandbox process start", and wait for it with "sandbox process wait"`
	if err == nil || err.Error() != want {
		t.Error(err)
	}
	_, _, err = l.run(t.Context(), "", "exec", "-u", "alice", "--timeout", "30s", "-C", "/etc", "--", "true")
	if err == nil || strings.Contains(err.Error(), "--timeout") {
		t.Errorf("another refusal: %v", err)
	}
	help := l.ok("", "exec", "--help")
	for _, told := range []string{"--timeout", "5m at most", "sandbox process wait"} {
		if !strings.Contains(help, told) {
			t.Errorf("the help does not say %q: %s", told, help)
		}
	}
}
