package dockerexec

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
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
	if err := (onNetworks{e}).Clear(t.Context(), "isolated", nil); err != nil || e.calls[c.fingerprint] != c || !c.is(life.Queued) {
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

// A container that is bound and still being made when its network's gateway is recreated does not
// become ready: the new gateway does not know it.
func TestAGatewayIsReplacedWhileAContainerIsMade(t *testing.T) {
	for kind, persistent := range map[string]string{"for calls": "", "persistent": "s2"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				engine, o, e, _ := opening(t)
				program := filepath.Join(engine.dir, "gateway")
				if err := os.WriteFile(program, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				o.gate = &networks.Gateway{
					Program: program, Dir: filepath.Join(engine.dir, "shared"), Target: "/shared",
				}
				e.Start(t.Context(), anything{})
				defer e.Shutdown()
				first := true
				engine.Serve(func(p enginetest.Program) {
					if first {
						first = false
						for _, c := range engine.Containers() {
							if c.Labels[labelGateway] != "" {
								engine.Lose(c.ID, true)
							}
						}
						e.mendNetworks()
					}
					if persistent == "" {
						engine.obey(p)
					} else {
						answers(new(atomic.Int64))(p)
					}
				})
				spec := networked(engine, "bob", persistent)
				start := func() (err error) {
					if persistent == "" {
						return e.run(t.Context(), spec)
					}
					_, err = e.StartPersistent(t.Context(), spec, quota.Token{})
					return err
				}
				if err := start(); err == nil || !strings.Contains(err.Error(), ErrLost.Error()) {
					t.Errorf("the one before: %v", err)
				}
				if err := start(); err != nil {
					t.Errorf("the next one: %v", err)
				}
			})
		})
	}
}
