package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/apitypes"
)

// nestForever makes directories in one another in the process's own folder, as deep as it is told.
const nestForever = `python3 -c '
import os
os.chdir("/.daycare/process")
for _ in range(22000):
    os.mkdir("d"); os.chdir("d")
print("nested", flush=True)'`

// A process's folder goes whatever its user has put into it, with few descriptors, while other calls go on.
func TestADeepFolderOfAProcess(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.stop(syscall.SIGTERM)
		l.wrap = []string{"prlimit", "--nofile=512:512"}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		l.register(t, "deep")
		l.register(t, "other")
		p := l.startProcess(t, "deep", apitypes.StartProcess{Command: nestForever})
		eventuallyWithin(t, 2*time.Minute, "the directories are made", func() bool { return strings.Contains(logOf(t, p), "nested") })
		l.call(t, "DELETE", "deep/processes/"+p.ID, nil, nil)
		if dir := filepath.Dir(p.LogPath); exists(dir) {
			t.Errorf("%s is there", dir)
		}
		if got := l.sh(t, "other", "echo here"); got != "here" {
			t.Errorf("another user's call: %q", got)
		}
		// One that is cut short goes on with the next start.
		l.stop(syscall.SIGKILL)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		eventuallyWithin(t, 2*time.Minute, "nothing is left", func() bool {
			left, _ := filepath.Glob(l.path("users/deep/.removed-*"))
			return len(left) == 0
		})
		if strings.Contains(l.log.String(), "too many open files") {
			t.Error("the service came to its limit of descriptors")
		}
	})
}

// A launch that a killed service has left is gone with the next start.
func TestSecretsOfAKilledService(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.put(t, "secrets", "file", "x")
		l.stop(syscall.SIGKILL)
		left := l.path("users/secrets/processes/p-aaaaaaaaaaaa/launch.json")
		if err := os.MkdirAll(filepath.Dir(left), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(left, []byte(secret), 0o400); err != nil {
			t.Fatal(err)
		}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		if exists(left) {
			t.Error("the secrets are on disk")
		}
	})
}
