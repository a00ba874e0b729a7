package dockerexec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAgentIsInstalledUnderItsContent(t *testing.T) {
	dir := t.TempDir()
	binary, data := filepath.Join(dir, "built"), filepath.Join(dir, "data")
	install := func(content string) (string, os.FileInfo) {
		t.Helper()
		if err := os.WriteFile(binary, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		path, err := installAgent(binary, data)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Fatalf("%q, %v", got, err)
		}
		return path, info
	}
	first, before := install("agent 1")
	second, _ := install("agent 2")
	again, after := install("agent 1")
	if first == second || first != again || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Errorf("installed as %s, %s and again %s", first, second, again)
	}
	if before.Mode() != 0o555 {
		t.Errorf("mode %v", before.Mode())
	}
	if filepath.Dir(first) != filepath.Join(data, "agent") {
		t.Errorf("installed as %s", first)
	}
	entries, err := os.ReadDir(filepath.Join(data, "agent"))
	if err != nil || len(entries) != 2 {
		t.Errorf("leftovers: %v, %v", entries, err)
	}
}

func TestAgentThatIsNotThere(t *testing.T) {
	dir := t.TempDir()
	_, err := installAgent(filepath.Join(dir, "none"), dir)
	if err == nil || !strings.Contains(err.Error(), "build it with make") {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("leftovers: %v, %v", entries, err)
	}
}

// A copy that a power cut has left in part, wherever it cut, is replaced.
func TestAgentThatWasCutIsInstalledAgain(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "built")
	const content = "the agent"
	if err := os.WriteFile(binary, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for length := range len(content) {
		path, err := installAgent(binary, dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, int64(length)); err != nil {
			t.Fatal(err)
		}
		if _, err := installAgent(binary, dir); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Fatalf("cut to %d bytes: %q, %v", length, got, err)
		}
	}
}
