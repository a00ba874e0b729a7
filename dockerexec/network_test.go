package dockerexec

import (
	"net/netip"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// A network found under our network's name is ours, ours to replace, or somebody else's, which is
// left alone.
func TestFindNetwork(t *testing.T) {
	wanted := Network{Profile: "isolated", Name: "daycare-isolated", Bridge: "daycare-iso"}
	for name, c := range map[string]struct {
		change func(*engine.Network)
		class  func(error) bool
	}{
		"as it was made": {func(*engine.Network) {}, nil},
		"of another service": {
			func(n *engine.Network) { n.Labels[labelInstance] = "other" }, cerrdefs.IsConflict,
		},
		"of nobody, unused": {
			func(n *engine.Network) { n.Labels = nil }, cerrdefs.IsFailedPrecondition,
		},
		"of nobody, in use": {
			func(n *engine.Network) { n.Labels, n.InUse = nil, true }, cerrdefs.IsConflict,
		},
		"changed": {
			func(n *engine.Network) { n.Fault = "is of another kind" }, cerrdefs.IsFailedPrecondition,
		},
		"not there": {nil, cerrdefs.IsNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			docker := enginetest.New(t.Context())
			if c.change != nil {
				found := engine.Network{
					Name: wanted.Name, Bridge: wanted.Bridge,
					Labels: map[string]string{labelInstance: "test"},
					Subnet: netip.MustParsePrefix("10.1.0.0/22"), Gateway: netip.MustParseAddr("10.1.0.1"),
				}
				c.change(&found)
				docker.AddNetwork(found)
			}
			e := New(docker, Config{Instance: "test", Log: zerolog.Nop()})
			defer e.Shutdown()
			got, err := e.findNetwork(t.Context(), wanted)
			switch {
			case c.class == nil && (err != nil || got.Subnet.String() != "10.1.0.0/22" ||
				got.Gateway.String() != "10.1.0.1"):
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
	e := New(refusing(t), Config{Instance: "test", Log: zerolog.Nop()})
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
