package dockerexec

import (
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

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
	if err := (onNetworks{e.host}).Clear(t.Context(), "isolated"); err != nil || e.calls[c.fingerprint] != c || !c.is(life.Queued) {
		t.Errorf("%v, %v", err, e.calls)
	}
}
