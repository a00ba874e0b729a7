package member

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := runFenceCommand(ctx, []string{"sh", "-c", "sleep 7011 & wait"}, "host-2", 77); err == nil || !strings.Contains(err.Error(), "it had to end") {
		t.Errorf("%v", err)
	}
}
