package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/config"
)

// The settings file is edited where it is, also behind a link, and keeps its mode and its comments.
func TestTemplatesInTheSettings(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "real.json"), filepath.Join(dir, "settings.json")
	if err := os.WriteFile(file, []byte("{\n  // ours\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real.json", link); err != nil {
		t.Fatal(err)
	}
	add := func(text []byte) ([]byte, error) {
		return config.AddE2BTemplate(text, "node", config.E2BTemplate{Image: "node:24", Start: "serve"})
	}
	if err := editSettings(link, false, add); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(file)
	info, _ := os.Lstat(link)
	real, _ := os.Stat(file)
	if !strings.Contains(string(text), "// ours") || info.Mode()&os.ModeSymlink == 0 || real.Mode().Perm() != 0o600 {
		t.Errorf("%s %v %v", text, info.Mode(), real.Mode())
	}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		root := rootCommand()
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs(append(args, "--settings", link))
		err := root.Execute()
		return out.String(), err
	}
	if out, err := run("template", "list"); err != nil || !strings.Contains(out, "node  node:24  serve") {
		t.Errorf("%s %v", out, err)
	}
	if out, err := run("template", "remove", "node"); err != nil {
		t.Errorf("%s %v", out, err)
	}
	if _, err := run("template", "remove", "node"); err == nil {
		t.Error("it is removed twice")
	}
	if out, err := run("template", "list"); err != nil || strings.Contains(out, "node") {
		t.Errorf("%s %v", out, err)
	}
}
