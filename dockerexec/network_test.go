package dockerexec

import (
	"testing"
	"testing/synctest"
	"time"

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

// A container that is being removed because it is stale keeps no network in use: the one that it is
// on may have another name now.
func TestAStaleContainerHasNoNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, _, e, other := opening(t)
		engine.Lose(other, false)
		stale := networked(engine, "bob", "")
		stale.Platform.Network = "before"
		id := engine.add(stale)
		engine.takes(time.Second, "Remove")
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait()
		if c := e.known(id); c == nil || !c.is(life.Leaving) {
			t.Fatal("it is not being removed")
		}
		if checked := e.nets.Check(t.Context()); len(checked) != 0 {
			t.Errorf("checked: %v", checked)
		}
	})
}
