// Package layout holds the rules of the house that must never slip: which package may import which,
// and that each says what it is for. HACKING.md has the map.
package layout

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/daycare-run/sandbox/"

// mayImport lists, for each package of ours, which others of ours it may import. Imports run
// downwards only; cmd, e2e and bench may import everything.
var mayImport = map[string]string{
	"access":           "fault quota sandbox",
	"api":              "access attach api/apitypes sandbox dockerexec egress/decisions expose fault process quota",
	"api/apitypes":     "",
	"client":           "api/apitypes",
	"wrapper":          "api/apitypes",
	"mcp":              "client api/apitypes policy",
	"attach":           "dockerexec egress/decisions fault quota",
	"quota":            "",
	"sandbox":          "quota attach pathmap policy hostfs fault durable dockerexec images engine egress egress/decisions egress/gateway expose process agent/creds agent/launch",
	"policy":           "pathmap fault",
	"fault":            "",
	"durable":          "",
	"shim":             "",
	"dockerexec":       "durable shim agent/creds agent/wire agent/launch agent/seccomp engine quota",
	"egress":           "egress/budget egress/gateway egress/guard egress/rules egress/decisions dnsfilter netrange policy",
	"egress/guard":     "egress/budget httplog",
	"egress/budget":    "",
	"httplog":          "",
	"egress/gateway":   "",
	"egress/rules":     "",
	"egress/decisions": "",
	"images":           "engine",
	"engine":           "",
	"agent":            "agent/wire agent/launch agent/spawn",
	"agent/creds":      "",
	"agent/launch":     "",
	"process":          "durable expose fault quota",
	"expose":           "fault",
	"agent/wire":       "",
	"agent/spawn":      "",
	"agent/seccomp":    "",
	"config":           "",
	"doctor":           "api/apitypes",
	"dnsfilter":        "",
	"netrange":         "",
	"pathmap":          "",
	"hostfs":           "fault",
	"version":          "",
}

// onlyIn lists libraries that have one place.
var onlyIn = map[string]string{
	"github.com/docker/docker/client":            "dockerexec images engine",
	"github.com/libp2p/go-yamux/v5":              "agent agent/wire dockerexec",
	"github.com/google/renameio/v2":              "durable",
	"github.com/coder/websocket":                 "api client",
	"github.com/caarlos0/env/v10":                "config cmd/sandboxd",
	"github.com/coreos/go-systemd/v22/daemon":    "cmd/sandboxd",
	"github.com/modelcontextprotocol/go-sdk/mcp": "mcp cmd/sandbox",
	"github.com/spf13/cobra":                     "cmd/sandbox cmd/sandboxd",
	"github.com/spf13/cobra/doc":                 "cmd/sandbox cmd/sandboxd",
}

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
}

func packages(t *testing.T) map[string]pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Doc,Imports", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]pkg{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if name := strings.TrimPrefix(p.ImportPath, module); name != p.ImportPath {
			all[name] = p
		}
	}
}

func free(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return top == "cmd" || top == "e2e" || top == "bench"
}

func TestImportsRunDownwards(t *testing.T) {
	all := packages(t)
	if len(all) < len(mayImport) {
		t.Fatalf("only %d packages were found", len(all))
	}
	for name, p := range all {
		allowed, known := mayImport[name]
		if free(name) {
			continue
		}
		if !known {
			t.Errorf("%s is not on the map: say in mayImport what it may import", name)
		}
		for _, path := range p.Imports {
			if ours := strings.TrimPrefix(path, module); ours != path && !has(allowed, ours) {
				t.Errorf("%s imports %s, which is not below it", name, ours)
			}
		}
	}
}

func TestLibrariesHaveOnePlace(t *testing.T) {
	for name, p := range packages(t) {
		if top, _, _ := strings.Cut(name, "/"); top == "e2e" || top == "bench" {
			continue
		}
		for _, path := range p.Imports {
			if where, kept := onlyIn[path]; kept && !has(where, name) {
				t.Errorf("%s imports %s, which belongs to %s", name, path, where)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for name, p := range packages(t) {
		// A folder of tests alone has its comment where go list does not look.
		if p.Doc == "" && name != "e2e" {
			t.Errorf("%s has no package comment", name)
		}
	}
}

func has(list, name string) bool {
	for _, item := range strings.Fields(list) {
		if item == name {
			return true
		}
	}
	return false
}
