package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
)

// nest makes directories in one another on the host, as deep as a program may that holds on to the last one.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for n := 0; n < depth && err == nil; n++ {
		if err = unix.Mkdirat(at, "d", 0o700); err != nil {
			break
		}
		above := at
		at, err = unix.Openat(above, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		_ = unix.Close(above)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(at)
}

// A process has no way to put something into its folder. Whatever is in it all the same, by an earlier version's
// process, goes with few descriptors, while other calls go on.
func TestADeepFolderOfAProcess(t *testing.T) {
	eachOwn(t, func(t *testing.T, l *lab) {
		l.stop(syscall.SIGTERM)
		l.wrap = []string{"prlimit", "--nofile=512:512"}
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		l.register(t, "deep")
		l.register(t, "other")
		p := l.startProcess(t, "deep", types.StartProcess{Command: "mkdir /.daycare/process/d || echo refused; sleep 7391"})
		prints(t, p, "refused")
		nest(t, filepath.Dir(p.LogPath), 22_000)
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
