// Package layout holds the rules of the layout that must never slip: imports run downwards, each
// library has its place, and each package says what it is for. HACKING.md has the map.
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

// layers has our packages, from the top down: each may import those of the lines below its own, and
// no others of ours. cmd and e2e are above all. dockerexec is below policy, registry and errs, so it
// cannot come to know what a call, a permission or a status is.
var layers = []string{
	"internal/metrics internal/cli/probes",
	"api internal/e2b internal/console internal/cluster/member internal/cleanup internal/sandboxtest",
	"internal/sandbox internal/workload/runner internal/cli/mcp",
	"internal/files internal/workload/process internal/workload/persistent internal/workload/attach",
	"internal/warm internal/plantest",
	"internal/plan",
	"internal/rootfs internal/egress internal/cluster/forward internal/cli/wrapper",
	"internal/registry internal/egress/guard dnsfilter internal/access internal/hints",
	"internal/credential internal/egress/authority",
	"internal/policy internal/hostfs internal/ids internal/archive internal/cluster internal/vault",
	"internal/errs config client",
	"dockerexec internal/cli/doctor internal/cli/usage",
	"dockerexec/session dockerexec/mounts dockerexec/networks images internal/engine/enginetest",
	"internal/engine internal/quota internal/budget internal/calls internal/datadir",
	"internal/agent internal/agent/agenttest internal/cluster/etcdtest internal/cluster/fence",
	"internal/agent/control internal/agent/mux internal/egress/gateway",
	"internal/agent/wire internal/events internal/durable internal/fair internal/cgroup internal/pace",
	"internal/agent/launch internal/agent/spawn internal/agent/creds internal/agent/seccomp",
	"dockerexec/life internal/cluster/changes internal/relay internal/httplog internal/picture",
	"internal/egress/decisions internal/egress/rules internal/egress/sockopt internal/cli/man",
	"api/types pathmap internal/strictjson internal/utf8cut internal/version internal/waittest",
	"internal/e2b/filesystempb internal/e2b/processpb tools/figures",
}

// closed are packages that import no others of ours than these: the client, which strangers import,
// what decides, what speaks to Docker, and what runs inside a container.
var closed = map[string]string{
	"client":          "api/types",
	"internal/policy": "internal/errs pathmap",
	"internal/engine": "internal/cgroup",
	"internal/agent": "internal/agent/control internal/agent/launch internal/agent/mux " +
		"internal/agent/spawn internal/agent/wire internal/relay",
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
	all, line := packages(t), map[string]int{}
	for i, layer := range layers {
		for _, name := range strings.Fields(layer) {
			if _, twice := line[name]; twice || all[name].ImportPath == "" {
				t.Errorf("%s is in layers twice, or is no package", name)
			}
			line[name] = i
		}
	}
	for name, p := range all {
		if free(name) {
			continue
		}
		own, known := line[name]
		if !known {
			t.Errorf("%s is not on the map: give it a line in layers", name)
		}
		may, isClosed := closed[name]
		for _, path := range p.Imports {
			ours := strings.TrimPrefix(path, module)
			if below, is := line[ours]; ours != path && (!is || below <= own) {
				t.Errorf("%s imports %s, which is not below it", name, ours)
			} else if ours != path && isClosed && !has(may, ours) {
				t.Errorf("%s imports %s, and may not", name, ours)
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
