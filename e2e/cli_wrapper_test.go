package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cli/wrapper"
)

// wrapped is the wrapper in a directory, under settings.
func (l *lab) wrapped(t *testing.T, dir, settings string, args ...string) *exec.Cmd {
	t.Helper()
	file := filepath.Join(t.TempDir(), "settings.json")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := l.cli(append([]string{"--settings", file}, args...)...)
	cmd.Dir = dir
	return cmd
}

// ends runs a command to its end.
func ends(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, fault bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &fault
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), fault.String(), cmd.ProcessState.ExitCode()
}

// A command under a settings file writes what that allows, sees nothing that it hides, and ends as it would
// without: in a user's home, and in a directory of the host's.
func TestWrapper(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		for name, dir := range map[string]string{"home": l.at("wrapped", "project"), "work": l.path("users/wrapped/work")} {
			t.Run(name, func(t *testing.T) {
				mkdir(t, l.home("wrapped"))
				mkdir(t, dir)
				if name == "work" { // outside of homes commands run as the owner of this one
					mkdir(t, l.home(wrapper.DefaultUser))
					uid := int(l.owner(wrapper.DefaultUser))
					if err := os.Chown(dir, uid, uid); err != nil {
						t.Fatal(err)
					}
				}
				for file, content := range map[string]string{"notes": "notes", ".env": secret, "vault/key": secret, "kept/file": "kept"} {
					putFile(t, filepath.Join(dir, file), content)
				}
				const settings = `{"filesystem": {"denyRead": [".env", "./vault/**", "~/.ssh"], "allowWrite": ["."], "denyWrite": ["kept"]},
					"network": {"allowedDomains": [], "deniedDomains": []}, "enableWeakerNestedSandbox": false}`
				for _, c := range []struct {
					name           string
					args           []string
					stdin          string
					stdout, stderr string
					code           int
				}{
					{name: "a program", args: []string{"--", "cat", "notes"}, stdout: "notes"},
					{name: "a command line", args: []string{"--", "cat notes | wc -c"}, stdout: "5\n"},
					{name: "its exit code", args: []string{"--", "exit 42"}, code: 42},
					{name: "a signal", args: []string{"--", "kill -TERM $$"}, code: 143},
					{name: "not found", args: []string{"--", "no-such-program"}, stderr: "no-such-program", code: 127},
					{name: "odd arguments", args: []string{"--", "printf", "[%s]", "--", "", "a b", `"'\`, "$x", "new\nline", "--settings"}, stdout: "[--][][a b][\"'\\][$x][new\nline][--settings]"},
					{name: "stdin", args: []string{"--", "wc", "-c"}, stdin: strings.Repeat("x", 1<<20), stdout: "1048576\n"},
					{name: "environment", args: []string{"--env", "A=b c", "--", "echo $A"}, stdout: "b c\n"},
					{name: "no network", args: []string{"--", "grep -c eth /proc/net/dev"}, stdout: "0\n", code: 1},
					{name: "an allowed write", args: []string{"--", "echo mine > mine && cat mine"}, stdout: "mine\n"},
					{name: "a denied write", args: []string{"--", "echo mine > kept/file; cat kept/file"}, stdout: "kept", stderr: "kept/file"},
					{name: "hidden paths", args: []string{"--", "cat .env vault/key; mv vault elsewhere"}, stderr: "vault", code: 1},
					{name: "nothing of the host", args: []string{"--", "cat", l.path("data/instance")}, stderr: "No such file", code: 1},
					{name: "time is up", args: []string{"--timeout", "300ms", "--", "sleep", "7520"}, stderr: "timed out", code: 124},
					{name: "nothing to run", stderr: "there is no command to run", code: 125},
				} {
					cmd := l.wrapped(t, dir, settings, c.args...)
					cmd.Stdin = strings.NewReader(c.stdin)
					stdout, stderr, code := ends(t, cmd)
					if stdout != c.stdout || !strings.Contains(stderr, c.stderr) || code != c.code || strings.Contains(stdout+stderr, secret) || strings.Contains(stderr, "warning") {
						t.Errorf("%s: %q, %q, exit code %d", c.name, stdout, stderr, code)
					}
				}
				if holds(filepath.Join(dir, "mine")) != "mine\n" || holds(filepath.Join(dir, "kept/file")) != "kept" || holds(filepath.Join(dir, "vault/key")) != secret {
					t.Error("the host has something else")
				}
				stdout, stderr, code := ends(t, l.wrapped(t, dir, `{"enableWeakerNestedSandbox": true, "ripgrep": {"command": "rg"}}`, "--", "cat notes; echo x > notes"))
				if stdout != "notes" || code != 1 || !strings.Contains(stderr, "docker.enableWeakerNestedSandbox decides") || !strings.Contains(stderr, "ripgrep has no meaning") {
					t.Errorf("without a word: %q %q %d", stdout, stderr, code)
				}
			})
		}
	})
}

// A directory that is the container's own by its name is at /workspace, and any other at its own
// name, where git works whoever owns the repository; one outside of allowedMountRoots is refused with
// the setting's name.
func TestWrapperShowsTheWorkingDirectory(t *testing.T) {
	work, err := os.MkdirTemp("/srv", "daycare-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	putFile(t, work+"/in/file", "x")
	init := exec.Command("git", "init", "-q", "-b", "main", work+"/in/repo") // root's
	if out, err := init.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	eachOwn(t, func(t *testing.T, l *lab) {
		stdout, stderr, code := ends(t, l.wrapped(t, work+"/in", `{}`, "--", "pwd; cat "+work+"/in/file; id -u"))
		if !strings.HasPrefix(stdout, work+"/in\nx2") || code != 0 {
			t.Errorf("%q %q %d", stdout, stderr, code)
		}
		stdout, stderr, code = ends(t, l.wrapped(t, work+"/in", `{}`, "--",
			"git -C repo status --branch --porcelain"))
		if stdout != "## No commits yet on main\n" || code != 0 {
			t.Errorf("git in another owner's repository: %q %q %d", stdout, stderr, code)
		}
		stdout, stderr, code = ends(t, l.wrapped(t, l.path("users"), `{}`, "--", "pwd"))
		if code != 125 || !strings.Contains(stderr, "holds the homes of users") {
			t.Errorf("all homes: %q %q %d", stdout, stderr, code)
		}
		mkdir(t, l.path("users/x/work"))
		if stdout, stderr, code = ends(t, l.wrapped(t, l.path("users/x/work"), `{}`, "--", "pwd")); stdout != "/workspace\n" {
			t.Errorf("below /tmp: %q %q %d", stdout, stderr, code)
		}
		stdout, stderr, code = ends(t, l.wrapped(t, "/usr", `{}`, "--", "pwd"))
		if code != 125 || !strings.Contains(stderr, "allowedMountRoots") || !strings.Contains(stderr, "mounts[0] is /usr") ||
			!strings.Contains(stderr, `"allowedMountRoots": ["`+l.path("users")+`","/usr"]`) || !strings.Contains(stderr, "/etc/daycare-sandbox/settings.json") {
			t.Errorf("/usr: %q %q %d", stdout, stderr, code)
		}
	}, "SANDBOXD_ALLOWED_MOUNT_ROOTS="+work+",/tmp")
}

func TestWrapperRefusesSettings(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		mkdir(t, l.home("wrapped-bad"))
		for settings, says := range map[string]string{
			`{"network": {"allowUnixSockets": ["/var/run/docker.sock"]}}`:                "network.allowUnixSockets: sockets of the host",
			`{"filesystem": {"denyRead": ["*.key"]}}`:                                    `filesystem.denyRead[0]: "*.key" is a pattern`,
			`{"filesystem": {"denyRaed": []}}`:                                           "filesystem.denyRaed: unknown key",
			`{"network": {"allowedDomains": ["*"], "deniedDomains": ["a.example.org"]}}`: "nothing is filtered",
			`{"network": {"allowedDomains": ["10.0.0.1"]}}`:                              "is an IP address",
			`{`: "the JSON ends too early",
		} {
			stdout, stderr, code := ends(t, l.wrapped(t, l.home("wrapped-bad"), settings, "--", "echo", "ran"))
			if code != 125 || stdout != "" || !strings.Contains(stderr, says) {
				t.Errorf("%s: %q %q %d", settings, stdout, stderr, code)
			}
		}
		if n := len(l.containersOf(t, "wrapped-bad")); n != 0 {
			t.Errorf("%d containers were made", n)
		}
	})
}

// Names are reached as the settings say, below a wildcard but not those that are denied.
func TestWrapperReaches(t *testing.T) {
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.put(t, "wrapped-net", "ca.pem", string(w.CA()))
		base := w.name(t, "base", w.shared)
		open, closed, other := "open."+base, "closed."+base, w.name(t, "other", w.shared)
		for _, name := range []string{open, closed} {
			w.DNS.SetA(name, 60e9, w.shared)
		}
		settings := fmt.Sprintf(`{"network": {"allowedDomains": ["*.%s"], "deniedDomains": [%q]}}`, base, closed)
		for name, reached := range map[string]bool{open: true, closed: false, other: false} {
			stdout, stderr, code := ends(t, l.wrapped(t, l.home("wrapped-net"), settings, "--env", "CURL_CA_BUNDLE=/home/ca.pem", "--", hello("https://"+name)))
			if arrived := len(w.arrivals(name)) > 0; arrived != reached || (code == 0) != reached {
				t.Errorf("%s: %q %q %d, arrived: %v", name, stdout, stderr, code, arrived)
			}
			if !reached && !strings.Contains(stderr, "sandbox: egress denied "+name) {
				t.Errorf("%s: it is not told: %q", name, stderr)
			}
		}
	})
}

// Ctrl-C reaches the command, and what it says to that counts.
func TestWrapperPassesSignals(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		mkdir(t, l.home("wrapped-signal"))
		cmd := l.wrapped(t, l.home("wrapped-signal"), `{}`, "--", "python3", "-c", `
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
signal.sigwait({signal.SIGINT})
print("interrupted", flush=True)
sys.exit(9)
`)
		interrupt(t, cmd)
	})
}

// The sandbox.json of a process gives a command what the process was granted.
func TestWrapperOfAProcess(t *testing.T) {
	eachRuntime(t, func(t *testing.T, l *lab) {
		l.put(t, "wrapped-process", "project/vault/key", secret)
		l.put(t, "wrapped-process", "project/kept", "kept")
		l.registerAs(t, "wrapped-process", types.Registration{UserID: "wrapped-process", Permissions: types.Permissions{WorkingDir: "/home/project"}})
		p := l.startProcess(t, "wrapped-process", types.StartProcess{
			Command: "exec sleep 7530", Permissions: []string{"@workspace"},
			Restrictions: types.Restrictions{DenyRead: []string{"/home/project/vault"}, DenyWrite: []string{"/home/project/kept"}},
		})
		cmd := l.cli("--settings", l.path("data/processes/"+p.ID+"/sandbox.json"), "--", "cat vault/key; echo x > kept; echo x > ../outside; echo mine > mine; cat kept mine")
		cmd.Dir = l.at("wrapped-process", "project")
		stdout, stderr, code := ends(t, cmd)
		if stdout != "keptmine\n" || code != 0 || strings.Contains(stderr, secret) || !slices.Equal([]bool{true, false}, []bool{exists(l.at("wrapped-process", "project/mine")), exists(l.at("wrapped-process", "outside"))}) {
			t.Errorf("%q %q %d", stdout, stderr, code)
		}
		if err := l.client.RemoveProcess(t.Context(), "wrapped-process", p.ID); err != nil {
			t.Error(err)
		}
	})
}
