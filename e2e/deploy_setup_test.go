package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
			map[string]runtime{"other": {Path: theirs}, "runsc": {Path: ours}, "runsc-events": {Path: filepath.Join(dir, "bin/runsc-events")}, "runsc-offline": {Path: filepath.Join(dir, "bin/runsc-offline")}, "runsc-linked": {Path: filepath.Join(dir, "bin/runsc-linked")}},
		},
		"of an earlier version": {
			map[string]runtime{"runsc": {Path: ours}, "runsc-events": {Path: ours, Args: []string{"--host-uds=all"}}, "runsc-offline": {Path: ours, Args: []string{"--network=none"}}},
			map[string]runtime{"runsc": {Path: ours}, "runsc-events": {Path: ours, Args: []string{"--host-uds=all"}}, "runsc-offline": {Path: filepath.Join(dir, "bin/runsc-offline")}, "runsc-linked": {Path: filepath.Join(dir, "bin/runsc-linked")}},
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

// runscSetup returns what installs runsc and what goes with it below dir, on a host whose Docker knows no runsc.
func runscSetup(t *testing.T, dir string) (install func()) {
	t.Helper()
	mkdir(t, filepath.Join(dir, "bin"))
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := setupScript(t, dir, "setup_engine", "\nsetup_engine\n", "\nsetup_runsc_programs\n")
	return func() {
		t.Helper()
		cmd := exec.Command(script)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// A runsc that setup has built is replaced by another that it builds. An operator's own stays, and gets the freezer beside it.
func TestSetupReplacesOnlyItsOwnRunsc(t *testing.T) {
	begin(t)
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	install := runscSetup(t, dir)
	install()
	beside := []string{"runsc-freezer", "runsc-events", "runsc-offline", "runsc-linker", "runsc-linked"}
	all := append([]string{"runsc", "gvisor-bin/gvisor_sentry", "gvisor-bin/gvisor-sentry-prewarmer"}, beside...)
	// stamps says of each program which file it is.
	stamps := func() (found []string) {
		for _, name := range all {
			info, err := os.Lstat(filepath.Join(bin, name))
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, fmt.Sprint(name, " ", info.Sys().(*syscall.Stat_t).Ino))
		}
		return found
	}
	first := stamps()
	install()
	if second := stamps(); !slices.Equal(second, first) {
		t.Errorf("there was nothing to do, and it made %q of %q", second, first)
	}

	program, built := filepath.Join(bin, "runsc"), readText(t, filepath.Join(bin, "runsc"))
	if err := errors.Join(os.Remove(program), os.WriteFile(program, []byte(built+"of another time"), 0o755)); err != nil {
		t.Fatal(err)
	}
	install()
	if readText(t, program) != built {
		t.Error("it does not replace its own")
	}

	const theirs = "#!/bin/sh\n"
	if err := errors.Join(os.RemoveAll(bin), os.Mkdir(bin, 0o755), os.WriteFile(program, []byte(theirs), 0o755)); err != nil {
		t.Fatal(err)
	}
	install()
	if readText(t, program) != theirs {
		t.Error("it replaces an operator's")
	}
	entries, err := os.ReadDir(bin)
	if err != nil || len(entries) != 1+len(beside) {
		t.Errorf("beside an operator's there are %v, %v", entries, err)
	}
}

// gVisor's next versions start no container without the programs in gvisor-bin. This one does so when it is told to.
func TestRunscStartsWithItsSidecarsAlone(t *testing.T) {
	begin(t)
	dir := t.TempDir()
	runscSetup(t, dir)()
	run := func() (string, error) {
		out, err := exec.Command(filepath.Join(dir, "bin/runsc"), "--root="+filepath.Join(dir, "root"), "--network=none",
			"--sidecar-usage-policy=STRICT", "do", "/bin/cat", "/proc/version").CombinedOutput()
		return string(out), err
	}
	if out, err := run(); err != nil || !strings.Contains(out, "gvisor") && !strings.HasPrefix(out, "Linux version 4.") {
		t.Errorf("%q, %v", out, err)
	}
	for _, name := range []string{"gvisor-sentry-prewarmer", "gvisor_sentry"} {
		if err := os.Remove(filepath.Join(dir, "bin/gvisor-bin", name)); err != nil {
			t.Fatal(err)
		}
		if out, err := run(); err == nil || !strings.Contains(out, name) {
			t.Errorf("without %s: %q, %v", name, out, err)
		}
	}
}
