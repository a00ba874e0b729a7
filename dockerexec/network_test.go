package dockerexec

import (
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/network"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// A network found under our network's name is ours, ours to replace, or somebody else's, which is left alone.
func TestFindNetwork(t *testing.T) {
	wanted := Network{Profile: "isolated", Name: "daycare-isolated", Bridge: "daycare-iso"}
	for _, c := range []struct {
		name   string
		change func(*network.Inspect)
		class  func(error) bool
	}{
		{"as it was made", func(*network.Inspect) {}, nil},
		{"of another service", func(n *network.Inspect) { n.Labels[labelInstance] = "other" }, cerrdefs.IsConflict},
		{"of nobody, unused", func(n *network.Inspect) { n.Labels = nil }, cerrdefs.IsFailedPrecondition},
		{"of nobody, in use", func(n *network.Inspect) {
			n.Labels = nil
			n.Containers = map[string]network.EndpointResource{"x": {}}
		}, cerrdefs.IsConflict},
		{"with IPv6", func(n *network.Inspect) { n.EnableIPv6 = true }, cerrdefs.IsFailedPrecondition},
		{"internal", func(n *network.Inspect) { n.Internal = true }, cerrdefs.IsFailedPrecondition},
		{"of another driver", func(n *network.Inspect) { n.Driver = "macvlan" }, cerrdefs.IsFailedPrecondition},
		{"on another bridge", func(n *network.Inspect) { n.Options["com.docker.network.bridge.name"] = "docker0" }, cerrdefs.IsFailedPrecondition},
		{"with neighbours", func(n *network.Inspect) { n.Options["com.docker.network.bridge.enable_icc"] = "true" }, cerrdefs.IsFailedPrecondition},
		{"without a subnet", func(n *network.Inspect) { n.IPAM.Config = nil }, cerrdefs.IsFailedPrecondition},
		{"with a second subnet", func(n *network.Inspect) { n.IPAM.Config = append(n.IPAM.Config, n.IPAM.Config[0]) }, cerrdefs.IsFailedPrecondition},
		{"with an odd gateway", func(n *network.Inspect) { n.IPAM.Config[0].Gateway = "" }, cerrdefs.IsFailedPrecondition},
		{"not there", nil, cerrdefs.IsNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			answers := map[string]any{"/networks/daycare-isolated": nil}
			if c.change != nil {
				found := network.Inspect{
					Name: wanted.Name, Driver: "bridge", Options: bridgeOptions(wanted.Bridge), Labels: map[string]string{labelInstance: "test"},
					IPAM: network.IPAM{Config: []network.IPAMConfig{{Subnet: "10.1.0.0/22", Gateway: "10.1.0.1"}}},
				}
				c.change(&found)
				answers["/networks/daycare-isolated"] = found
			}
			e := New(fakeEngine(t, answers), Config{Instance: "test", Log: zerolog.Nop()})
			defer e.Shutdown()
			got, err := e.findNetwork(t.Context(), wanted)
			switch {
			case c.class == nil && (err != nil || got.Subnet.String() != "10.1.0.0/22" || got.Gateway.String() != "10.1.0.1"):
				t.Errorf("%+v, %v", got, err)
			case c.class != nil && !c.class(err):
				t.Errorf("%v", err)
			}
		})
	}
}

// A persistent container that is being made for the pool has no id yet, so it can be neither ended nor removed: its maker
// finds that its network is gone.
func TestANetworkIsClearedWhileThePoolIsFilled(t *testing.T) {
	e := New(fakeEngine(t, nil), Config{Instance: "test", Log: zerolog.Nop()}) // an engine that refuses everything
	defer e.Shutdown()
	user := PoolUser("p1")
	spec := Spec{User: user, Persistent: user, Egress: Egress{Profile: "isolated"}}
	e.mu.Lock()
	c := e.add(spec, spec.Fingerprint())
	e.mu.Unlock()
	if err := e.clearNetwork(t.Context(), "isolated"); err != nil || e.calls[c.fingerprint] != c || !c.is(life.Queued) {
		t.Errorf("%v, %v", err, e.calls)
	}
}
