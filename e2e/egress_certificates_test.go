package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/api/types"
)

// What the operator trusts programs inside trust, too, beside what the image does, and without being told.
func TestCertificatesOfTheHouse(t *testing.T) {
	beside(t)
	w := openWorld(t)
	w.serveTools(t)
	each(t, func(t *testing.T, p *place, runtime string) {
		file := filepath.Join(t.TempDir(), "house.pem")
		write := func(text string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil { // what is inside is a copy
				t.Fatal(err)
			}
		}
		write("# of the house\n" + string(w.CA()))
		l := newLabIn(t, p, runtime, append(worldSettings(w), "SANDBOXD_EGRESS_CA_FILE="+file)...)
		l.registerAs(t, "house", types.Registration{UserID: "house", Permissions: types.Permissions{Network: true}})
		name := w.name(t, "house", w.shared)
		call := func(command string, env map[string]string) types.Output {
			return l.run(t, "house", types.Exec{
				Command: "cd /tmp; " + strings.ReplaceAll(command, "NAME", name), Permissions: []string{"@network"}, AllowedDomains: []string{name}, TimeoutMs: unhurried, Env: env,
			})
		}
		for tool, command := range map[string]string{
			"curl":                          "curl -sS --max-time 20 https://NAME/hello",
			"wget":                          "wget -qO- https://NAME/hello",
			"python":                        `python3 -c 'import urllib.request as r; print(r.urlopen("https://NAME/hello").read().decode())'`,
			"node":                          `node -e 'fetch("https://NAME/hello").then(r => r.text()).then(console.log)'`,
			"npm":                           "npm ping --registry https://NAME/ >/dev/null 2>&1; echo hello", // whose request has to arrive
			"git":                           "rm -rf clone; git clone -q https://NAME/repo.git clone && cat clone/greeting",
			"pip":                           "pip install -q --disable-pip-version-check --break-system-packages --no-cache-dir --target /tmp/venv --index-url https://NAME/simple/ greeting && PYTHONPATH=/tmp/venv python3 -c 'import greeting; print(greeting.text)'",
			"openssl, without any variable": "env -i PATH=$PATH openssl s_client -verify_return_error -connect NAME:443 -servername NAME </dev/null >/dev/null 2>&1 && echo hello",
		} {
			if out := call(command, nil); !strings.Contains(out.Stdout, "hello") || out.Failed {
				t.Errorf("%s: %q %q", tool, out.Stdout, out.Stderr)
			}
		}
		if paths := w.arrivals(name); !slices.ContainsFunc(paths, func(path string) bool { return strings.HasPrefix(path, "/-/ping") }) {
			t.Errorf("npm asked for nothing: %q", paths)
		}
		// The image's own are still there, nobody can add to them, and a call may say something else.
		if got := call("grep -c BEGIN $SSL_CERT_FILE; echo x >> $SSL_CERT_FILE || cat $NODE_EXTRA_CA_CERTS >/dev/null", nil); len(strings.TrimSpace(got.Stdout)) < 2 || !strings.Contains(got.Stderr, "denied") {
			t.Errorf("the bundle: %q %q", got.Stdout, got.Stderr)
		}
		if out := call("curl -sS https://NAME/hello", map[string]string{"CURL_CA_BUNDLE": "/dev/null"}); !out.Failed {
			t.Error("the call's own variable did not win")
		}
		// Another content is another container; a file with a fault changes nothing.
		write("nothing of use")
		l.reload(t)
		if log := l.log.String(); !strings.Contains(log, "cannot use egress.caFile "+file+": there is no certificate in PEM in it") {
			t.Errorf("the log lacks the fault: %s", endOf(log))
		}
		if out := call("curl -sS https://NAME/hello", nil); out.Failed || out.Cold {
			t.Errorf("after a fault: %+v", out)
		}
		write(hostCA(t))
		l.reload(t)
		if out := call("curl -sS https://NAME/hello", nil); !out.Failed || !out.Cold || !strings.Contains(out.Stderr, "certificate") {
			t.Errorf("it is trusted no more: %+v", out)
		}
	})
}

// A file that cannot be used keeps the service from starting, which says why.
func TestCertificatesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		empty:                          "cannot use egress.caFile " + empty + ": there is no certificate in PEM in it",
		filepath.Join(dir, "none.pem"): "cannot use egress.caFile: open ",
		"relative.pem":                 "egress.caFile",
	} {
		l, err := openLab(t, machine, append(runtimeSettings("runsc"), "SANDBOXD_EGRESS_CA_FILE="+file))
		if err == nil {
			l.close()
			t.Errorf("%s: it has started", file)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
