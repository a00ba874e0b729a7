package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/docker/docker/api/types/system"
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

// What an operator has registered with Docker stays, and so does the file from before. The runtimes that are missing are for the same
// program. The set-up asks the Docker that the service would use, whichever one is selected for the command docker.
func TestSetupKeepsTheOperatorsRuntimes(t *testing.T) {
	engine := newPrivateEngine(t)
	dir := t.TempDir()
	mkdir(t, filepath.Join(dir, "bin"))
	theirs, ours := filepath.Join(dir, "own/runsc"), filepath.Join(dir, "bin/runsc-freezer")
	mkdir(t, filepath.Dir(theirs))
	if err := errors.Join(os.WriteFile(theirs, []byte("#!/bin/sh\n"), 0o755), os.Symlink("/usr/local/bin/runsc", filepath.Join(dir, "bin/runsc"))); err != nil {
		t.Fatal(err)
	}
	docker, file := connect(t, engine.place.socket), filepath.Join(engine.dir, "daemon.json")
	script := setupScript(t, dir, "setup_runsc", "/etc/docker/daemon.json", file, "/var/run/docker.pid", engine.dir+"/pid")
	type runtime struct {
		Path string   `json:"path"`
		Args []string `json:"runtimeArgs,omitempty"`
	}
	for name, tt := range map[string]struct{ before, after map[string]runtime }{
		"none": {
			map[string]runtime{"other": {Path: theirs}},
			map[string]runtime{"other": {Path: theirs}, "runsc": {Path: ours}, "runsc-events": {Path: ours, Args: []string{"--host-uds=open"}}, "runsc-offline": {Path: ours, Args: []string{"--network=none"}}},
		},
		"their own": {
			map[string]runtime{"runsc": {Path: theirs, Args: []string{"--platform=kvm", "--overlay2=all:dir=/a b"}}},
			map[string]runtime{
				"runsc":         {Path: theirs, Args: []string{"--platform=kvm", "--overlay2=all:dir=/a b"}},
				"runsc-events":  {Path: theirs, Args: []string{"--platform=kvm", "--overlay2=all:dir=/a b", "--host-uds=open"}},
				"runsc-offline": {Path: theirs, Args: []string{"--platform=kvm", "--overlay2=all:dir=/a b", "--network=none"}},
			},
		},
		"all but one": {
			map[string]runtime{"runsc": {Path: theirs}, "runsc-events": {Path: theirs, Args: []string{"--host-uds=all"}}},
			map[string]runtime{"runsc": {Path: theirs}, "runsc-events": {Path: theirs, Args: []string{"--host-uds=all"}}, "runsc-offline": {Path: theirs, Args: []string{"--network=none"}}},
		},
	} {
		before, err := json.Marshal(map[string]any{"bridge": "none", "iptables": false, "ip-masq": false, "runtimes": tt.before})
		if err == nil {
			err = errors.Join(os.WriteFile(file, before, 0o600), engine.cmd.Process.Signal(syscall.SIGHUP))
		}
		if err != nil {
			t.Fatal(err)
		}
		knows := func(want map[string]runtime) bool {
			info, err := docker.Info(t.Context())
			known := map[string]system.RuntimeWithStatus{}
			for name, r := range info.Runtimes {
				if r.Path != "runc" && !strings.HasPrefix(name, "io.containerd.") {
					known[name] = r
				}
			}
			for name, r := range want {
				if known[name].Path != r.Path || !slices.Equal(known[name].Args, r.Args) {
					return false
				}
			}
			return err == nil && len(known) == len(want)
		}
		eventually(t, "Docker has the runtimes of "+name, func() bool { return knows(tt.before) })
		for range 2 { // the second time there is nothing to do
			cmd := exec.Command(script)
			cmd.Env = append(os.Environ(), "SANDBOXD_DOCKER_SOCKET_PATH="+engine.place.socket, "DOCKER_CONTEXT=another")
			if out, err := cmd.CombinedOutput(); err != nil || !knows(tt.after) {
				t.Errorf("%s: %v\n%s%s", name, err, out, readText(t, file))
			}
		}
		if kept, err := os.ReadFile(file + "~"); err != nil || !bytes.Equal(kept, before) {
			t.Errorf("%s: the file from before is %s, %v", name, kept, err)
		}
	}
}
