package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/plantest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// A command that found no space is told which place was full and what bounds it, if that is known.
func TestHintsOfFullPlaces(t *testing.T) {
	full, roomy := t.TempDir(), t.TempDir()
	for _, dir := range []string{full, roomy} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
	}
	if err := os.WriteFile(filepath.Join(full, "x"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	space := func(path, limit, value string) []hints.Hint {
		return []hints.Hint{{Kind: types.HintNoSpace, Path: path, Limit: limit, Value: value}}
	}
	for _, tt := range []struct {
		printed, tmp string
		want         []hints.Hint
	}{
		{"cp: error writing '/tmp/a/b': No space left on device", "", space("/tmp", "limits.tmp", "1Gi")},
		{"OSError: [Errno 28] No space left on device", full, space("/tmp", "limits.tmp", "1Gi")},
		{"OSError: [Errno 28] No space left on device", roomy, space("", "", "")},
		{"OSError: [Errno 28] No space left on device", "", space("", "", "")},
		{"tee: /home/x: No space left on device", full, space("/home/x", "", "")},
		{"tee: /var/tmp/x: No space left on device", "", space("/var/tmp", "limits.varTmp", "3Mi")},
		{"tee: /dev/shm/x: No space left on device", "", space("/dev/shm", "limits.shm", "1500")},
	} {
		executor := &fakeExecutor{tmp: tt.tmp, run: func(_ dockerexec.Spec, _ warm.Command, out session.Output) (warm.Result, error) {
			return warm.Result{Result: session.Result{ExitCode: 1}}, out(session.Stderr, []byte(tt.printed))
		}}
		s := newService(t, executor, "")
		platform := plantest.Platform(t)
		platform.Settings.Limits.Tmp, platform.Settings.Limits.VarTmp, platform.Settings.Limits.Shm = 1<<30, 3<<20, 1500
		s.planner.Platforms().Use(platform)
		got, err := s.Exec(t.Context(), "agent", Request{Command: "x"}, func(session.Stream, []byte) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, got.Hints); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", tt.printed, diff)
		}
	}
}
