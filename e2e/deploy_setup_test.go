package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// setupScript puts scripts/setup.sh into a folder like a checkout, for a host whose own files are below dir. It ends after the
// step of this name.
func setupScript(t *testing.T, dir, last string, own ...string) (script string) {
	t.Helper()
	checkout := t.TempDir()
	mkdir(t, filepath.Join(checkout, "scripts"))
	for _, name := range []string{"go.mod", "deploy", "tools"} {
		from, err := filepath.Abs(filepath.Join("..", name))
		if err == nil {
			err = os.Symlink(from, filepath.Join(checkout, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text := readText(t, "../scripts/setup.sh")
	at := strings.LastIndex(text, "\n"+last+"\n")
	if at < 0 {
		t.Fatalf("setup.sh has no step %s", last)
	}
	text = strings.NewReplacer(append(own, "/usr/local/bin/", dir+"/bin/", "/run/systemd/system", dir+"/no-systemd", "/var/log/", dir+"/")...).Replace(text[:at+len(last)+2])
	script = filepath.Join(checkout, "scripts/setup.sh")
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return script
}

// The command docker is installed where the daemon's package does not bring it, also after a set-up that has left it out.
func TestSetupInstallsTheDockerCommand(t *testing.T) {
	begin(t)
	const succeeds = "#!/bin/sh\n"
	for _, there := range []string{"", "dockerd"} {
		dir := t.TempDir()
		bin := filepath.Join(dir, "path")
		mkdir(t, bin)
		own := map[string]string{"dpkg-query": "#!/bin/sh\nexit 1\n", "apt-get": `#!/bin/sh
echo "$*" >>` + dir + `/apt
case "$*" in
*" docker.io") ln -s /bin/true ` + bin + `/dockerd ;;
*" docker-cli") ln -s /bin/true ` + bin + `/docker ;;
esac
`}
		if there != "" {
			own[there] = succeeds
		}
		for name, text := range own {
			if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		// Everything else is the machine's.
		for _, from := range filepath.SplitList(os.Getenv("PATH")) {
			programs, _ := os.ReadDir(from)
			for _, program := range programs {
				if strings.HasPrefix(program.Name(), "docker") {
					continue
				}
				if err := os.Symlink(filepath.Join(from, program.Name()), filepath.Join(bin, program.Name())); err != nil && !errors.Is(err, os.ErrExist) {
					t.Fatal(err)
				}
			}
		}
		cmd := exec.Command(setupScript(t, dir, "setup_engine"))
		cmd.Env = append(os.Environ(), "PATH="+bin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("with %q there: %v\n%s", there, err, out)
		}
		if installed := readText(t, filepath.Join(dir, "apt")); !strings.Contains(installed, " docker-cli\n") || strings.Contains(installed, " docker.io\n") != (there == "") {
			t.Errorf("with %q there, it installs\n%s", there, installed)
		}
	}
}
