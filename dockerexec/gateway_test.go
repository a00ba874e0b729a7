package dockerexec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// gatewayOnly are Networks that say what a gateway is made with.
type gatewayOnly struct {
	networks
	gateway Gateway
	wanted  bool
}

func (g gatewayOnly) Gateway(Network) (Gateway, bool, error) { return g.gateway, g.wanted, nil }

// A gateway that is as it would be made is kept; another service's is left alone; if none is wanted, none is looked
// for.
func TestFindGateway(t *testing.T) {
	wanted := Gateway{Arguments: []string{"gateway", "{}"}, Dir: "/data/gateway/isolated", Sysctls: map[string]string{"a": "1"}}
	changed := wanted
	changed.Sysctls = map[string]string{"a": "0"}
	if wanted.likeness() == changed.likeness() {
		t.Error("two that differ are alike")
	}
	for name, c := range map[string]struct {
		instance string
		wanted   bool
		id       string
		class    func(error) bool
	}{
		"as it was made":     {"test", true, "g1", nil},
		"of another service": {"other", true, "", cerrdefs.IsConflict},
		"not wanted":         {"other", false, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			docker := enginetest.New(t.Context())
			docker.Add(engine.Container{
				ID: "g1", Name: "daycare-isolated-gateway",
				Labels: map[string]string{labelInstance: c.instance, labelGateway: wanted.likeness()},
			})
			e := New(docker,
				Config{Instance: "test", Networks: gatewayOnly{gateway: wanted, wanted: c.wanted}, Log: zerolog.Nop()})
			defer e.Shutdown()
			n, err := e.gateway(t.Context(), Network{Profile: "isolated", Name: "daycare-isolated"})
			if c.class != nil {
				if !c.class(err) {
					t.Error(err)
				}
				return
			}
			if err != nil || n.GatewayID != c.id || (n.GatewayDir != "") != c.wanted {
				t.Errorf("%+v, %v", n, err)
			}
		})
	}
}

// The log says how many lose their network with a gateway that was made for other settings.
func TestAGatewayForOtherSettings(t *testing.T) {
	docker := refusing(t, "Inspect")
	docker.Add(engine.Container{
		ID: "g1", Name: "daycare-isolated-gateway",
		Labels: map[string]string{labelInstance: "test", labelGateway: "another"},
	})
	var log strings.Builder
	e := New(docker,
		Config{Instance: "test", Networks: gatewayOnly{wanted: true}, Log: zerolog.New(&log)})
	defer e.Shutdown()
	for id, domains := range map[string][]string{"open": {"*"}, "filtered": {"a.example"}, "closed": {}} {
		e.inPlace(t, Spec{Process: Process{ID: id}, Egress: Egress{Profile: "isolated", Domains: domains}}, id, 0)
	}
	if _, err := e.gateway(t.Context(), Network{Profile: "isolated", Name: "daycare-isolated"}); err == nil {
		t.Error("it was replaced on an engine that refuses everything")
	}
	if !strings.Contains(log.String(), `"containers":2`) {
		t.Error(log.String())
	}
}

// Of the gateways' programs, the one in use is kept.
func TestOtherProgramsGo(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"gateway-1", "gateway-2", "isolated"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeOthers(filepath.Join(dir, "gateway-2")); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 || left[0].Name() != "gateway-2" || left[1].Name() != "isolated" {
		t.Errorf("%v, %v", left, err)
	}
}
