package engine

import (
	"encoding/json"
	"net/http"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/network"
)

// A network that differs from one that MakeNetwork makes has a Fault that says so.
func TestFaultsOfNetworks(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*network.Inspect)
		fault  string
	}{
		"as it was made": {func(*network.Inspect) {}, ""},
		"with IPv6":      {func(n *network.Inspect) { n.EnableIPv6 = true }, "is of another kind"},
		"internal":       {func(n *network.Inspect) { n.Internal = true }, "is of another kind"},
		"of another driver": {
			func(n *network.Inspect) { n.Driver = "macvlan" }, "is of another kind",
		},
		"on another bridge": {
			func(n *network.Inspect) { n.Options["com.docker.network.bridge.name"] = "docker0" },
			`has com.docker.network.bridge.name="docker0", not "daycare-iso"`,
		},
		"with neighbours": {
			func(n *network.Inspect) { n.Options["com.docker.network.bridge.enable_icc"] = "true" },
			`has com.docker.network.bridge.enable_icc="true", not "false"`,
		},
		"without a subnet": {
			func(n *network.Inspect) { n.IPAM.Config = nil }, "is of another kind",
		},
		"with a second subnet": {
			func(n *network.Inspect) { n.IPAM.Config = append(n.IPAM.Config, n.IPAM.Config[0]) },
			"is of another kind",
		},
		"with an odd gateway": {
			func(n *network.Inspect) { n.IPAM.Config[0].Gateway = "" }, `has the gateway ""`,
		},
		"in use": {
			func(n *network.Inspect) {
				n.Containers = map[string]network.EndpointResource{"x": {}}
			}, "",
		},
	} {
		found := network.Inspect{
			Name: "daycare-isolated", Driver: "bridge", Options: optionsOf("daycare-iso"),
			Labels: map[string]string{"a": "b"},
			IPAM: network.IPAM{Config: []network.IPAMConfig{
				{Subnet: "10.1.0.0/22", Gateway: "10.1.0.1"},
			}},
		}
		tt.change(&found)
		text, err := json.Marshal(found)
		if err != nil {
			t.Fatal(err)
		}
		d := scripted(func(r *http.Request) (int, string) {
			if r.URL.Path != "/v1.41/networks/daycare-isolated" {
				return http.StatusNotFound, `{"message":"not there"}`
			}
			return http.StatusOK, string(text)
		}).engine(t)
		got, err := d.FindNetwork(t.Context(), "daycare-isolated", "daycare-iso")
		if err != nil || got.Fault != tt.fault || got.InUse != (name == "in use") ||
			got.Labels["a"] != "b" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if tt.fault == "" && (got.Subnet.String() != "10.1.0.0/22" ||
			got.Gateway.String() != "10.1.0.1") {
			t.Errorf("%s: %+v", name, got)
		}
		if _, err := d.FindNetwork(t.Context(), "another", "b"); !cerrdefs.IsNotFound(err) {
			t.Error(err)
		}
	}
}
