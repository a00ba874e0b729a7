package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What is installed is all that is needed, and is taken away again; the operator's own stays.
func TestInstall(t *testing.T) {
	begin(t)
	dest := t.TempDir()
	run := func(target string) {
		t.Helper()
		cmd := exec.Command("make", "-C", "..", target)
		cmd.Env = append(os.Environ(), "DESTDIR="+dest, "PREFIX=/opt/sandbox")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
	}
	settings := filepath.Join(dest, "etc/daycare-sandbox/settings.json")
	run("install")
	if readText(t, settings) != readText(t, "../deploy/settings.json") {
		t.Error("the settings are others")
	}
	if err := os.WriteFile(settings, []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	run("install")
	if readText(t, settings) != "{}" {
		t.Error("settings that were there are gone")
	}
	if unit := readText(t, filepath.Join(dest, "opt/sandbox/lib/systemd/system/sandboxd.service")); !strings.Contains(unit, "\nExecStart=/opt/sandbox/bin/sandboxd\n") {
		t.Errorf("%s", unit)
	}
	for _, file := range []string{"bash-completion/completions/sandbox", "zsh/site-functions/_sandbox", "fish/vendor_completions.d/sandbox.fish"} {
		if text := readText(t, filepath.Join(dest, "opt/sandbox/share", file)); !strings.Contains(text, "sandbox") {
			t.Errorf("%s: %q", file, text)
		}
	}
	out, err := exec.Command(filepath.Join(dest, "opt/sandbox/bin/sandboxd"), "check", "--settings", settings).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	run("uninstall")
	var left []string
	_ = filepath.WalkDir(dest, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			left = append(left, name)
		}
		return err
	})
	if !slices.Equal(left, []string{settings}) {
		t.Errorf("left: %v", left)
	}
}
