//go:build linux

package agent

import (
	"strings"
	"testing"
)

func TestUnescape(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "/home/a": "/home/a", `/a\040b\011c`: "/a b\tc", `/a\134040b`: `/a\040b`, `\012`: "\n", `/a\04`: `/a\04`, `/a\`: `/a\`, `/a\xyz/\040`: `/a\xyz/ `,
	} {
		if got := unescape(text); got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
	}
}

func TestAccessTimeOfWhatIsNoMountPoint(t *testing.T) {
	if _, err := AccessTimes([]string{"/proc"}); err != nil {
		t.Error(err)
	}
	dir := t.TempDir()
	if _, err := AccessTimes([]string{"/proc", dir}); err == nil || !strings.Contains(err.Error(), "nothing is mounted at "+dir) {
		t.Errorf("%v", err)
	}
}
