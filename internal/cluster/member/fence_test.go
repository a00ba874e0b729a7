package member

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/waittest"
)

func TestFenceCommand(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	t.Setenv("SANDBOXD_SECRET", "not for it")
	if err := runFenceCommand(t.Context(), []string{"sh", "-c", `env > ` + said}, "host-2", 77); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(said)
	if err != nil || !strings.Contains(string(text), "FENCE_HOST=host-2\n") || !strings.Contains(string(text), "FENCE_EPOCH=77\n") || strings.Contains(string(text), "SECRET") {
		t.Errorf("%s, %v", text, err)
	}
	if err := runFenceCommand(t.Context(), []string{"sh", "-c", "echo no power switch; exit 3"}, "host-2", 77); err == nil || !strings.Contains(err.Error(), `host "host-2": exit status 3: no power switch`) {
		t.Errorf("%v", err)
	}
	if err := runFenceCommand(t.Context(), []string{"/does/not/exist"}, "host-2", 77); err == nil {
		t.Error("a program that does not exist succeeded")
	}
	// One that takes too long is killed, with its children.
	ctx, cancel := context.WithCancel(t.Context())
	child := func() string { text, _ := os.ReadFile(said); return strings.TrimSuffix(string(text), "\n") }
	if err := os.Remove(said); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer cancel()
		waittest.Comes(func() bool { text, _ := os.ReadFile(said); return strings.HasSuffix(string(text), "\n") })
	}()
	if err := runFenceCommand(ctx, []string{"sh", "-c", "sleep 7011 & echo $! > " + said + "; wait"}, "host-2", 77); err == nil || !strings.Contains(err.Error(), "it had to end") {
		t.Errorf("%v", err)
	}
	waittest.Until(t, "its child is dead", func() bool {
		stat, err := os.ReadFile("/proc/" + child() + "/stat")
		return child() != "" && (err != nil || strings.Contains(string(stat), ") Z "))
	})
}
