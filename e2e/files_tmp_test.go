package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
)

// /tmp is the user's own: one for all containers and for read and write, and nobody else's.
func TestTmpIsOneForAUser(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.register(t, "tmp-a")
		l.register(t, "tmp-b")
		// To read starts nothing; to write does.
		if _, err := l.client.Read(t.Context(), "tmp-a", types.Read{Target: client.Target("/tmp/api")}); kindOf(err) != types.NotFound || len(l.containersOf(t, "tmp-a")) != 0 {
			t.Errorf("a read without a container: %v, %d containers", err, len(l.containersOf(t, "tmp-a")))
		}
		l.write(t, "tmp-a", "/tmp/api", "api")
		if n := len(l.containersOf(t, "tmp-a")); n != 1 {
			t.Errorf("a write without a container: %d containers", n)
		}
		l.bash(t, "tmp-a", none, "echo none > /tmp/none")
		l.bash(t, "tmp-a", workspace, "echo workspace > /tmp/workspace")
		for _, grants := range [][]string{none, workspace} {
			if got := l.bash(t, "tmp-a", grants, "cat /tmp/api /tmp/none /tmp/workspace"); got != "apinone\nworkspace" {
				t.Errorf("with %v: %q", grants, got)
			}
		}
		if got := l.read(t, "tmp-a", "/tmp/none"); got != "none\n" {
			t.Errorf("by the API: %q", got)
		}
		if got := l.bash(t, "tmp-b", none, "ls -A /tmp"); got != "" {
			t.Errorf("another user sees %q", got)
		}
		if _, err := l.client.Read(t.Context(), "tmp-b", types.Read{Target: client.Target("/tmp/none")}); kindOf(err) != types.NotFound {
			t.Errorf("another user reads: %v", err)
		}
		var volume string
		for _, m := range l.containerOf(t, "tmp-a").Mounts {
			if m.Destination == "/tmp" {
				volume = m.Name
			}
		}
		l.cool(t, "tmp-a")
		eventually(t, "the volume is gone", func() bool { return volume != "" && !slices.Contains(l.volumes(), volume) })
		if got := l.bash(t, "tmp-a", none, "ls -A /tmp"); got != "" {
			t.Errorf("after the last container it has %q", got)
		}
	})
}

// It is bounded, for commands and for the API; a write that does not fit changes nothing.
func TestTmpIsBounded(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.register(t, "bounded")
		l.write(t, "bounded", "/tmp/file", "old")
		_, err := l.client.Write(t.Context(), "bounded", types.Write{Target: client.Target("/tmp/file"), Content: strings.Repeat("x", 2<<20)})
		if kindOf(err) != types.TooLarge {
			t.Errorf("a write of 2 MiB: %v", err)
		}
		_, err = l.client.Upload(t.Context(), "bounded", "/tmp/file", strings.NewReader(strings.Repeat("x", 2<<20)), false)
		if kindOf(err) != types.TooLarge {
			t.Errorf("an upload of 2 MiB: %v", err)
		}
		response := post(t, l, "/v1/sandboxes/bounded/write", `{"path":"/tmp/file","content":"`+strings.Repeat("x", 2<<20)+`"}`, "application/json")
		defer response.Body.Close()
		if response.StatusCode != 507 {
			t.Errorf("status %d", response.StatusCode)
		}
		if got := l.bash(t, "bounded", none, "cat /tmp/file; ls -A /tmp"); got != "oldfile" {
			t.Errorf("afterwards there is %q", got)
		}
		if got := l.bash(t, "bounded", none, "dd if=/dev/zero of=/tmp/big bs=64k count=64 2>&1 | grep -o 'No space left on device'; stat -c %s /tmp/big"); !strings.HasPrefix(got, "No space left on device\n") || len(got) > len("No space left on device\n1048576") {
			t.Errorf("dd: %q", got)
		}
		l.bash(t, "bounded", none, "rm /tmp/big") // under gVisor its own container has it open
		l.write(t, "bounded", "/tmp/fits", strings.Repeat("x", 500_000))
	}, "SANDBOXD_LIMITS_TMP=1Mi")
}
