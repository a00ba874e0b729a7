package e2e

import (
	"bytes"
	"context"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The TypeScript client: its types are those of the contract, its tests pass, its scenarios hold against a real
// service, and what npm packs of it can be installed and used.
func TestTypeScript(t *testing.T) {
	beside(t)
	root, user := t.TempDir(), t.TempDir()
	dir := filepath.Join(root, "clients/typescript")
	var once sync.Once
	made := false
	eachOutside(t, func(t *testing.T, l *lab, w *world) {
		once.Do(func() {
			typeScriptCopy(t, root)
			npm(t, dir, "ci")
			npm(t, dir, "run", "check")
			npm(t, dir, "test")
			installPackage(t, dir, user)
			made = true
		})
		if !made {
			t.Fatal("the client could not be made, as the other runtime's scenario says")
		}
		settings := append(typeScriptSettings(t, l, w), "SANDBOX_TEST_RUNTIME="+strings.TrimPrefix(filepath.Base(t.Name()), "TestTypeScript/"))
		files, err := filepath.Glob(filepath.Join(dir, "dist/test/service/*.test.js"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no scenarios in %s: %v", dir, err)
		}
		inDir(t, dir, settings, append([]string{"node", "--test"}, files...)...)
		if got := inDir(t, user, settings, "node", "use.mjs"); got != "42\n" {
			t.Errorf("the installed package: %q", got)
		}
	})
}

// typeScriptCopy copies the client's sources, and the contract to where they expect it.
func typeScriptCopy(t *testing.T, root string) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("the TypeScript client's tests need %s: run `scripts/setup.sh tests`, or install Node 18.19 or newer with npm", program)
		}
	}
	copyTree(t, "../clients/typescript", filepath.Join(root, "clients/typescript"), "node_modules", "dist")
	copyTree(t, "../api", filepath.Join(root, "api"))
}

func copyTree(t *testing.T, from, to string, without ...string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, name)
		switch {
		case err != nil:
			return err
		case slices.Contains(without, relative):
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, relative), 0o755)
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, relative), text, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func npm(t *testing.T, dir string, args ...string) {
	t.Helper()
	inDir(t, dir, nil, append([]string{"npm", "--no-update-notifier"}, args...)...)
}

// inDir runs a program that has to succeed, and returns what it prints.
func inDir(t *testing.T, dir string, environ []string, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environ...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%.100q: %v\n%s%s", argv, err, out, stderr.Bytes())
	}
	return string(out)
}

// installPackage makes an empty directory a project that has installed what npm packs.
func installPackage(t *testing.T, dir, user string) {
	t.Helper()
	npm(t, dir, "pack", "--pack-destination", user)
	packed, err := filepath.Glob(filepath.Join(user, "*.tgz"))
	if err != nil || len(packed) != 1 {
		t.Fatalf("npm packed %q, %v", packed, err)
	}
	for name, text := range map[string]string{
		"package.json": `{"name": "an-engine", "private": true}`,
		"use.mjs": `import { Client, Sandbox } from "@daycare-run/sandbox";
const client = new Client();
const box = await Sandbox.open(client, { id: "packed", userId: "packed" });
const { stdout } = await box.exec({ command: "echo $((6 * 7))" });
process.stdout.write(stdout);
client.close();
`,
	} {
		if err := os.WriteFile(filepath.Join(user, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	npm(t, user, "install", "--offline", packed[0])
	installed := filepath.Join(user, "node_modules/@daycare-run/sandbox")
	for name, want := range map[string]bool{"README.md": true, "LICENSE": true, "dist/src/index.d.ts": true, "src": false, "dist/test": false} {
		if _, err := os.Stat(filepath.Join(installed, name)); (err == nil) != want {
			t.Errorf("the package has %s: %v, not %v", name, err == nil, want)
		}
	}
}

// typeScriptSettings tell the scenarios where the service and the test internet are.
func typeScriptSettings(t *testing.T, l *lab, w *world) []string {
	t.Helper()
	const token = "0123456789abcdef0123456789abcdef"
	server := httptest.NewTLSServer(tokenProxy(l.path("sandboxd.sock"), token))
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{
		"SANDBOX_SOCKET=" + l.path("sandboxd.sock"),
		"SANDBOX_TEST_URL=" + server.URL,
		"SANDBOX_TEST_CA=" + ca,
		"SANDBOX_TEST_TOKEN=" + token,
		"SANDBOX_TEST_ALLOWED=" + w.name(t, "allowed", w.shared),
		"SANDBOX_TEST_DENIED=" + w.name(t, "denied", w.shared),
	}
}

// tokenProxy passes calls with the token on to a socket, and refuses all others.
func tokenProxy(socket, token string) http.Handler {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "sandboxd"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Authorization") == "Bearer "+token {
			// Else the server may close a request's body while the proxy still looks for its end.
			_ = http.NewResponseController(w).EnableFullDuplex()
			proxy.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error":{"kind":"denied","message":"the token is not known"}}`))
	})
}
