// Package layout holds the rules of the layout that must never slip: which package may import which, where each
// library has its place, and that each package says what it is for. HACKING.md has the map.
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
// downwards only; cmd and e2e may import everything.
var mayImport = map[string]string{
	"internal/access":              "internal/ids internal/strictjson internal/errs internal/quota",
	"api":                          "api/types dockerexec dockerexec/session internal/access internal/workload/attach internal/calls internal/cgroup internal/cluster/changes internal/egress/decisions internal/errs internal/events internal/files internal/hints internal/ids internal/pace internal/workload/process internal/quota internal/sandbox internal/strictjson internal/utf8cut pathmap internal/fair",
	"api/types":                    "",
	"internal/e2b":                 "dockerexec/session internal/access internal/e2b/filesystempb internal/e2b/processpb internal/egress/decisions internal/errs internal/files internal/hints internal/hostfs internal/httplog internal/ids internal/workload/persistent internal/pace internal/plan internal/quota internal/sandbox internal/strictjson internal/fair",
	"internal/e2b/filesystempb":    "",
	"internal/e2b/processpb":       "",
	"client":                       "api/types",
	"internal/archive":             "internal/errs",
	"internal/cli/wrapper":         "api/types internal/policy internal/strictjson pathmap",
	"internal/cli/mcp":             "internal/utf8cut internal/hints client api/types internal/policy pathmap",
	"internal/workload/attach":     "internal/utf8cut internal/egress/decisions internal/errs internal/quota dockerexec/session",
	"internal/quota":               "internal/fair",
	"internal/picture":             "",
	"internal/utf8cut":             "",
	"internal/waittest":            "",
	"internal/pace":                "",
	"internal/relay":               "",
	"internal/sandbox":             "internal/warm dockerexec dockerexec/session internal/agent/launch internal/workload/attach internal/calls internal/cgroup internal/durable internal/egress/decisions internal/errs internal/events internal/files internal/hints internal/hostfs internal/ids internal/plan internal/policy internal/workload/process internal/quota internal/registry internal/rootfs pathmap internal/workload/persistent",
	"internal/plan":                "dockerexec images internal/agent/launch internal/engine internal/errs internal/hostfs internal/policy internal/quota internal/registry internal/rootfs pathmap",
	"internal/plantest":            "dockerexec images internal/engine internal/plan internal/quota internal/registry internal/rootfs",
	"internal/registry":            "internal/durable internal/errs internal/ids internal/policy internal/quota pathmap",
	"internal/workload/runner":     "dockerexec internal/agent/creds internal/agent/launch internal/errs internal/hostfs internal/plan internal/workload/process internal/quota internal/rootfs dockerexec/session",
	"internal/files":               "dockerexec internal/archive internal/errs internal/hostfs internal/picture internal/plan internal/policy internal/quota internal/registry internal/utf8cut pathmap",
	"internal/sandboxtest":         "internal/warm dockerexec dockerexec/session images internal/cgroup internal/engine internal/egress/decisions internal/events internal/files internal/hostfs internal/plan internal/policy internal/workload/process internal/quota internal/registry internal/rootfs internal/sandbox internal/workload/persistent internal/waittest",
	"internal/workload/persistent": "dockerexec dockerexec/life dockerexec/session internal/agent/control internal/agent/launch internal/agent/wire internal/cgroup internal/durable internal/errs internal/hostfs internal/ids internal/plan internal/quota internal/events internal/fair internal/policy internal/registry",
	"internal/warm":                "dockerexec dockerexec/life dockerexec/session internal/cgroup internal/events internal/quota",
	"internal/rootfs":              "pathmap internal/policy internal/hostfs internal/errs dockerexec",
	"internal/policy":              "pathmap internal/errs",
	"internal/calls":               "internal/events",
	"internal/cgroup":              "",
	"internal/console":             "internal/pace",
	"internal/errs":                "",
	"internal/hints":               "api/types internal/policy",
	"internal/ids":                 "internal/errs",
	"internal/events":              "",
	"internal/durable":             "",
	"internal/strictjson":          "",
	"dockerexec/life":              "",
	"dockerexec/mounts":            "dockerexec/life internal/engine pathmap",
	"dockerexec/networks":          "internal/durable internal/engine",
	"tools/figures":                "",
	"dockerexec":                   "dockerexec/life dockerexec/mounts dockerexec/networks internal/engine internal/cgroup internal/events internal/durable internal/agent/control internal/agent/creds internal/agent/wire internal/agent/launch internal/agent/seccomp internal/quota pathmap dockerexec/session",
	"dockerexec/session":           "internal/agent/control internal/agent/creds internal/agent/launch internal/agent/mux internal/agent/wire internal/relay",
	"internal/egress":              "dockerexec/networks internal/budget internal/egress/gateway internal/egress/guard internal/egress/rules internal/egress/sockopt internal/egress/decisions dnsfilter internal/policy internal/fair",
	"internal/egress/guard":        "internal/budget internal/egress/decisions internal/egress/sockopt internal/httplog internal/fair",
	"internal/egress/sockopt":      "",
	"internal/budget":              "internal/fair",
	"internal/fair":                "",
	"internal/httplog":             "",
	"internal/egress/gateway":      "internal/egress/sockopt",
	"internal/egress/rules":        "",
	"internal/egress/decisions":    "",
	"images":                       "internal/engine internal/durable",
	"internal/engine":              "internal/cgroup",
	"internal/agent":               "internal/relay internal/agent/mux internal/agent/control internal/agent/wire internal/agent/launch internal/agent/spawn",
	"internal/agent/control":       "internal/agent/wire internal/agent/launch",
	"internal/agent/creds":         "",
	"internal/agent/launch":        "",
	"internal/workload/process":    "internal/agent/launch internal/durable internal/errs internal/events internal/plan internal/quota internal/relay internal/utf8cut internal/fair internal/ids internal/registry",
	"internal/agent/mux":           "internal/agent/wire",
	"internal/agent/wire":          "internal/agent/launch internal/relay",
	"internal/agent/spawn":         "",
	"internal/agent/seccomp":       "",
	"config":                       "internal/strictjson",
	"internal/cli/probes":          "config dnsfilter dockerexec images internal/access internal/cgroup internal/cli/doctor internal/cluster internal/cluster/forward internal/cluster/member internal/engine internal/egress internal/policy internal/version",
	"internal/cli/doctor":          "api/types internal/engine",
	"internal/cli/man":             "",
	"internal/cli/usage":           "internal/strictjson",
	"dnsfilter":                    "internal/budget internal/fair",
	"pathmap":                      "",
	"internal/hostfs":              "internal/errs pathmap internal/fair",
	"internal/version":             "",
	"internal/cluster":             "internal/cluster/changes internal/events internal/errs",
	"internal/cluster/changes":     "",
	"internal/cluster/etcdtest":    "internal/waittest",
	"internal/cluster/forward":     "internal/ids internal/access internal/cluster internal/errs internal/quota internal/fair",
	"internal/cluster/fence":       "internal/cluster/etcdtest",
	"internal/metrics":             "api api/types dockerexec internal/calls internal/cluster/changes internal/cluster/member internal/e2b internal/egress internal/egress/decisions internal/events internal/workload/process internal/quota internal/sandbox internal/version internal/fair",
	"internal/datadir":             "internal/durable",
	"internal/cleanup":             "config dockerexec internal/datadir internal/engine internal/egress/rules internal/hostfs internal/rootfs",
	"internal/cluster/member":      "api/types config dockerexec internal/cluster internal/cluster/fence internal/cluster/forward internal/events internal/workload/persistent internal/workload/process internal/registry internal/version",

	// For tests alone.
	"internal/agent/agenttest":   "internal/agent/control internal/agent/mux internal/agent/wire",
	"internal/engine/enginetest": "internal/cgroup internal/engine",
}

// onlyIn lists libraries that have one place.
var onlyIn = map[string]string{
	"github.com/docker/docker/client":            "internal/engine",
	"github.com/libp2p/go-yamux/v5":              "internal/agent internal/agent/agenttest internal/agent/mux dockerexec/session",
	"github.com/google/renameio/v2":              "internal/durable",
	"github.com/coder/websocket":                 "api client",
	"connectrpc.com/connect":                     "internal/e2b",
	"go.etcd.io/etcd/client/v3":                  "internal/cluster internal/cluster/etcdtest internal/cluster/fence",
	"github.com/caarlos0/env/v10":                "config cmd/sandboxd",
	"github.com/tidwall/jsonc":                   "config",
	"github.com/coreos/go-systemd/v22/daemon":    "cmd/sandboxd",
	"github.com/modelcontextprotocol/go-sdk/mcp": "internal/cli/mcp cmd/sandbox",
	"github.com/spf13/cobra":                     "cmd/sandbox cmd/sandboxd internal/cli/man internal/cli/usage",
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
	return top == "cmd" || top == "e2e"
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
		if top, _, _ := strings.Cut(name, "/"); top == "e2e" {
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
