package dockerexec

import (
	"testing"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/quota"

	"github.com/daycare-run/sandbox/dockerexec/life"
)

// A persistent container that is being made for the pool has no id yet, so it can be neither ended nor removed: its maker
// finds that its network is gone.
func TestANetworkIsClearedWhileThePoolIsFilled(t *testing.T) {
	e := New(refusing(t), Config{Instance: "test", Log: zerolog.Nop()})
	defer e.Shutdown()
	user := PoolUser("p1")
	spec := Spec{User: user, Persistent: user, Egress: Egress{Profile: "isolated"}}
	c, _, err := e.Add(spec, spec.Platform, quota.Token{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Abandon(c, errNotNow)
	if err := (onNetworks{e}).Clear(t.Context(), "isolated"); err != nil || e.calls[c.fingerprint] != c || !c.is(life.Queued) {
		t.Errorf("%v, %v", err, e.calls)
	}
}
