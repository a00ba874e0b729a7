//go:build linux

package agent

import (
	"os"
	"path/filepath"
	"testing"
)

// A program that was killed for memory is known by the control group's own count, in both versions.
func TestAProgramKilledForMemoryIsCounted(t *testing.T) {
	for name, tt := range map[string]struct {
		file, text string
		want       int
	}{
		"version 1":           {"memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1},
		"version 1, none":     {"memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n", 0},
		"version 2":           {"memory.events", "low 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n", 2},
		"version 2, none":     {"memory.events", "max 12\noom 1\noom_kill 0\n", 0},
		"a kernel without it": {"memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", 0},
		"no control group":    {"memory.stat", "", 0},
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, tt.file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, tt.file), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := oomKills(dir); got != tt.want {
			t.Errorf("%s: %d", name, got)
		}
	}
}
