package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const (
	annesKey = "anne-0123456789abcdef0123456789abcdef"
	bensKey  = "ben-0123456789abcdef0123456789abcdef"
)

// e2bTemplates are what templates.test.mjs is about.
const e2bTemplates = `{"web": {"env": {"OF": "the template"}, "start": "{ echo at the start; readlink /proc/self/fd/0; } > made; exec python3 -m http.server 8080", "ready": "curl -sf localhost:8080/made && readlink /proc/self/fd/0 > ready"},
	"never": {"ready": "exit 1", "readyTimeoutMs": 2000}, "absent": {"image": "registry.invalid/absent:1"}}`

// e2bSettings have a lab speak to clients of E2B, and say what these need for it.
func e2bSettings(t *testing.T) (settings, environ []string) {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	text := `{"tokens":[{"name":"anne","token":"` + annesKey + `"},{"name":"ben","token":"` + bensKey + `","users":["ben"]}]}`
	if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freePort(t)
	url := "http://" + address
	return []string{"SANDBOXD_E2B_LISTEN=" + address, "SANDBOXD_E2B_DOMAIN=sandboxes.test", "SANDBOXD_E2B_TEMPLATES=" + e2bTemplates, "SANDBOXD_TCP_TOKENS_FILE=" + tokens},
		[]string{"E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url, "E2B_API_KEY=e2b_" + annesKey, "E2B_TEST_OTHER_KEY=e2b_" + bensKey}
}

// e2bOverTLS is e2bSettings with all by names below a domain, for which there is a certificate of an authority of ours.
func e2bOverTLS(t *testing.T) (settings, environ []string) {
	t.Helper()
	settings, environ = e2bSettings(t)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(settings[0], "SANDBOXD_E2B_LISTEN="))
	if err != nil {
		t.Fatal(err)
	}
	dir, domain := t.TempDir(), "boxes.test:"+port
	authority, certificate, key := wildcard(t, "*.boxes.test")
	file := func(name, text string) string {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	environ = slices.DeleteFunc(environ, func(entry string) bool { return strings.Contains(entry, "_URL=") })
	return append(settings, "SANDBOXD_E2B_DOMAIN="+domain, "SANDBOXD_TCP_CERT_FILE="+file("cert.pem", certificate), "SANDBOXD_TCP_KEY_FILE="+file("key.pem", key)),
		append(environ, "E2B_DOMAIN="+domain, "NODE_EXTRA_CA_CERTS="+file("ca.pem", authority), "NODE_OPTIONS=--import=./names.mjs")
}

var stockClientsOnce sync.Once

// stockClients installs the clients of E2B, as npm has them, and returns the folder of their scenarios.
func stockClients(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(runDir, "stock-clients")
	stockClientsOnce.Do(func() {
		if err := os.CopyFS(dir, os.DirFS("e2b")); err != nil {
			t.Fatal(err)
		}
		npm(t, dir, "ci", "--ignore-scripts")
	})
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "e2b")); err != nil {
		t.Fatalf("the clients could not be installed, as another scenario says: %v", err)
	}
	return dir
}

// onceAlone are files that do not depend on the client.
var onceAlone = []string{"machine.test.mjs", "wire.test.mjs", "templates.test.mjs", "computesdk.test.mjs", "agents.test.mjs"}

// mostCommands is how many commands a sandbox of TestStockClients runs at a time.
const mostCommands = 40

// TestStockClients runs scenarios with the stock client of E2B, unmodified: the newest, and one from half a year before.
func TestStockClients(t *testing.T) {
	beside(t)
	dir := stockClients(t)
	scenarios, err := filepath.Glob(filepath.Join(dir, "*.test.mjs"))
	if err != nil || len(scenarios) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	each(t, func(t *testing.T, p *place, runtime string) {
		w := openWorldBeside(t, p)
		settings, environ := e2bSettings(t)
		l := newLabIn(t, p, runtime, append(append(worldSettings(w), "SANDBOXD_E2B_ALLOW_ROOT=true", fmt.Sprint("SANDBOXD_QUOTAS_PER_USER_COMMANDS=", mostCommands)), settings...)...)
		denied := w.name(t, "another", w.shared) // which does not say the verdict itself
		environ = append(environ, "E2B_TEST_ALLOWED="+w.name(t, "allowed", w.shared), "E2B_TEST_DENIED="+denied, fmt.Sprint("E2B_TEST_MOST_COMMANDS=", mostCommands), "E2B_TEST_ADDRESS="+w.shared.String(), "E2B_TEST_RUNTIME="+runtime)
		steps, err := json.Marshal(oneMachine)
		if err != nil {
			t.Fatal(err)
		}
		environ = append(environ, "E2B_TEST_ONE_MACHINE="+string(steps))
		clients := []string{"e2b", "e2b-before"}
		if runtime == "runsc" { // the clients differ by their wire, which no runtime sees
			clients = clients[:1]
		}
		for _, client := range clients {
			t.Run(client, func(t *testing.T) {
				files := slices.DeleteFunc(slices.Clone(scenarios), func(name string) bool {
					return slices.Contains(onceAlone, filepath.Base(name)) && client != "e2b"
				})
				argv := append([]string{"node", "--test", "--test-concurrency=3"}, files...)
				out := inDir(t, dir, append(environ, "E2B_TEST_CLIENT="+client), argv...)
				if !strings.Contains(out, "# fail 0") {
					t.Error(out)
				}
				seesDenied(t, l, out, denied)
			})
		}
	})
}

// seesDenied looks in the log of egress for what a sandbox was refused that the scenarios name in their output.
func seesDenied(t *testing.T, l *lab, out, name string) {
	t.Helper()
	_, id, named := strings.Cut(out, "# was refused a name: ")
	id, _, _ = strings.Cut(id, "\n")
	log, err := l.cli("egress", "log", "--user", id, "--name", name).CombinedOutput()
	if !named || err != nil || !strings.Contains(string(log), "denied") || !strings.Contains(string(log), id) {
		t.Errorf("the log of sandbox %q: %s, %v", id, log, err)
	}
}

// TestStockClientsMeetARestart leaves sandboxes to a service that is stopped, and finds them again: with their files, their
// commands that go on, their pauses and their deadlines. All is by names and over TLS.
func TestStockClientsMeetARestart(t *testing.T) {
	beside(t)
	dir := stockClients(t)
	each(t, func(t *testing.T, p *place, runtime string) {
		settings, environ := e2bOverTLS(t)
		l := newLabIn(t, p, runtime, settings...)
		inDir(t, dir, environ, "node", "tls.mjs")
		sandboxes := 20
		if runtime != "runsc" {
			sandboxes = 5
		}
		environ = append(environ, fmt.Sprint("E2B_TEST_SANDBOXES=", sandboxes))
		left := filepath.Join(t.TempDir(), "left.json")
		inDir(t, dir, environ, "node", "restart.mjs", "begin", left)
		l.stop(syscall.SIGTERM)
		if err := l.start(); err != nil {
			t.Fatal(err)
		}
		inDir(t, dir, environ, "node", "restart.mjs", "go-on", left)
	})
}

// TestRootIsTurnedOff is for sandboxes that were made while root was allowed: none of them has it while it is not.
func TestRootIsTurnedOff(t *testing.T) {
	beside(t)
	dir := stockClients(t)
	settings, environ := e2bSettings(t)
	l := newLab(t, "runsc", settings...)
	write := l.onFile(t)
	allow := func(text string) {
		t.Helper()
		write(`{"listen":"SOCKET","e2b":{"allowRoot":` + text + `}}`)
		l.reload(t)
	}
	made := filepath.Join(t.TempDir(), "made.json")
	says := func(phase string) {
		t.Helper()
		inDir(t, dir, environ, "node", "rootoff.mjs", phase, made)
	}
	allow("true")
	says("begin")
	allow("false")
	says("refused")
	l.stop(syscall.SIGTERM)
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	says("refused")
	allow("true")
	says("allowed")
}
