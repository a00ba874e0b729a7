package e2e

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
)

// git and pip talk to servers of the test internet as they do to any other.
func TestEgressOfGitAndPip(t *testing.T) {
	beside(t)
	w := openWorld(t)
	w.serveTools(t)
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		l.traveller(t, w, "tools")
		name, other := w.name(t, "git", w.shared), w.name(t, "other", w.shared)
		env := "export GIT_SSL_CAINFO=/home/ca.pem PIP_CERT=/home/ca.pem PIP_DISABLE_PIP_VERSION_CHECK=1; cd /tmp && rm -rf clone venv && "
		if got := succeeds(t, l.reach(t, "tools", env+"git clone -q https://"+name+"/repo.git clone && cat clone/greeting", name)); got != "hello" {
			t.Errorf("git: %q", got)
		}
		if out := l.reach(t, "tools", env+"git clone -q https://"+other+"/repo.git clone", name); !out.Failed || !strings.Contains(out.Stderr, other) {
			t.Errorf("git, denied: %q", out.Stderr)
		}
		pip := "pip install -q --break-system-packages --no-cache-dir --target /tmp/venv --index-url https://%s/simple/ greeting && PYTHONPATH=/tmp/venv python3 -c 'import greeting; print(greeting.text)'"
		if got := succeeds(t, l.reach(t, "tools", env+fmt.Sprintf(pip, name), name)); got != "hello" {
			t.Errorf("pip: %q", got)
		}
		out := l.reach(t, "tools", env+fmt.Sprintf(strings.Replace(pip, "install", "install --retries 0", 1), other), name)
		if verdict, _ := refused(out, other); !out.Failed || verdict != "denied" {
			t.Errorf("pip, denied: %q, egress %+v", out.Stdout, out.Egress)
		}
	})
}

// serveTools has the test internet's servers serve a repository and an index, for all scenarios of the run.
func (w *world) serveTools(t *testing.T) {
	t.Helper()
	w.tools.Do(func() {
		serveRepository(t, w)
		serveWheel(t, w)
	})
}

// serveRepository serves a repository with one file, as plain files.
func serveRepository(t *testing.T, w *world) {
	t.Helper()
	dir, err := os.MkdirTemp(runDir, "repository-")
	if err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"init", "-q", "-b", "main", "work"}, {"-C", "work", "add", "greeting"},
		{"-C", "work", "-c", "user.name=e2e", "-c", "user.email=e2e@example.org", "commit", "-q", "-m", "greeting"},
		{"clone", "-q", "--bare", "work", "repo.git"}, {"-C", "repo.git", "update-server-info"},
	} {
		if argv[len(argv)-1] == "greeting" && argv[2] == "add" {
			if err := os.WriteFile(filepath.Join(dir, "work/greeting"), []byte("hello\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("git", argv...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", argv, err, out)
		}
	}
	w.Handle("GET /repo.git/", http.FileServer(http.Dir(dir)))
}

// serveWheel serves an index with one package of one module.
func serveWheel(t *testing.T, w *world) {
	t.Helper()
	files := map[string]string{
		"greeting.py":                          "text = 'hello'\n",
		"greeting-1.0.dist-info/METADATA":      "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
		"greeting-1.0.dist-info/WHEEL":         "Wheel-Version: 1.0\nGenerator: e2e\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"greeting-1.0.dist-info/top_level.txt": "greeting\n",
	}
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	record := ""
	for name, content := range files {
		sum := sha256.Sum256([]byte(content))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(content))
	}
	files["greeting-1.0.dist-info/RECORD"] = record + "greeting-1.0.dist-info/RECORD,,\n"
	for name, content := range files {
		f, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.Write([]byte(content))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	const wheel = "greeting-1.0-py3-none-any.whl"
	w.Handle("GET /simple/greeting/", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, `<!DOCTYPE html><html><body><a href="/wheels/%s">%s</a></body></html>`, wheel, wheel)
	}))
	w.Handle("GET /wheels/"+wheel, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		http.ServeContent(rw, r, wheel, time.Time{}, bytes.NewReader(archive.Bytes()))
	}))
}

// Package managers fetch a small package through their presets, from where the host's resolvers say that
// the registries are.
func TestEgressOfPackageManagers(t *testing.T) {
	each(t, func(t *testing.T, p *place, runtime string) {
		goroot := runtimeGOROOT(t)
		l := newLabIn(t, p, runtime, append(registrySettings(t), "SANDBOXD_ALLOWED_MOUNT_ROOTS="+goroot, "SANDBOXD_EGRESS_CA_FILE="+hostCAFile)...)
		l.registerAs(t, "packages", types.Registration{
			UserID:      "packages",
			Permissions: types.Permissions{Network: true, ReadDirs: []string{"/mnt/go"}},
			Mounts:      []types.Mount{{Source: goroot, Target: "/mnt/go", ReadOnly: true}},
		})
		timeout := int64(200_000)
		for _, c := range []struct {
			name, preset, other, command string
		}{
			{"npm", "node", "python", "rm -rf n && mkdir n && cd n && npm install --no-audit --no-fund --loglevel=error is-odd >&2 && node -e 'console.log(require(\"is-odd\")(3))'"},
			{"go", "go", "node", "rm -rf g && mkdir g && cd g && export GOPATH=/tmp/gopath GOMODCACHE=/tmp/gopath/mod GOFLAGS=-modcacherw GOTOOLCHAIN=local && /mnt/go/bin/go mod init example.org/x >&2 && /mnt/go/bin/go get golang.org/x/text@v0.3.8 >&2 && /mnt/go/bin/go list -m golang.org/x/text && echo true"},
		} {
			call := types.Exec{
				Command: "cd /tmp && " + c.command, Permissions: []string{"@network", "@read:/mnt/go"}, PackageManagers: []string{c.preset}, TimeoutMs: &timeout,
				Env: map[string]string{"GOFLAGS": "-mod=mod"},
			}
			out := l.run(t, "packages", call)
			for tries := 1; out.Failed && !out.TimedOut && tries < 3; tries++ {
				t.Logf("%s: once more after %s %.500q", c.name, exitText(out), out.Stderr)
				time.Sleep(11 * time.Second) // this needs the world outside, which may fail for a moment
				out = l.run(t, "packages", call)
			}
			if got := succeeds(t, out); !strings.HasSuffix(got, "true") {
				t.Errorf("%s: %q", c.name, got)
			}
			call.PackageManagers = []string{c.other}
			call.Command = "cd /tmp && rm -rf \"$npm_config_cache\" /tmp/gopath; export npm_config_cache=/tmp/empty-npm; " + strings.Replace(c.command, "npm install", "npm install --fetch-retries=0", 1)
			if out := l.run(t, "packages", call); !out.Failed || len(out.Egress) == 0 {
				t.Errorf("%s with the preset of another: %q, egress %v", c.name, out.Stdout, out.Egress)
			}
		}
	})
}

// registrySettings let a sandboxd resolve names as the host does. Where a registry is at an address that
// is not public, as behind a mirror of the house, that address is let through.
func registrySettings(t *testing.T) []string {
	t.Helper()
	presets, err := policy.NewPresets(nil)
	if err != nil {
		t.Fatal(err)
	}
	domains, err := presets.Resolve([]string{"node", "go", "python"})
	if err != nil {
		t.Fatal(err)
	}
	also := map[string]bool{}
	for _, name := range domains.List() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", name)
		cancel()
		if err != nil {
			continue // one of several
		}
		for _, addr := range addrs {
			if !(policy.Addresses{}).Admits(addr) {
				also[netip.PrefixFrom(addr, 32).String()] = true
			}
		}
	}
	list := []string{}
	for prefix := range also {
		list = append(list, prefix)
	}
	return []string{"SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS=" + hostResolvers(t), "SANDBOXD_EGRESS_ALSO_PUBLIC=" + strings.Join(list, ",")}
}

func hostResolvers(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		t.Fatal(err)
	}
	var servers []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "nameserver" {
			servers = append(servers, fields[1])
		}
	}
	return strings.Join(servers, ",")
}

// hostCAFile is what the host trusts: a mirror of the house may have a certificate of the house.
const hostCAFile = "/etc/ssl/certs/ca-certificates.crt"

func hostCA(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(hostCAFile)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func runtimeGOROOT(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("go env GOROOT: %v (built with %s)", err, runtime.Version())
	}
	return strings.TrimSpace(string(out))
}
