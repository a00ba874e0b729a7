package dockerexec

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	engines "github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// A persistent container that is being made for the pool has no id yet, so it can be neither ended
// nor removed when its network is: its maker finds that the network is gone, and leaves nothing.
func TestANetworkIsClearedWhileThePoolIsFilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, o, e, other := opening(t)
		defer e.Shutdown()
		engine.Lose(other, false)
		user := PoolUser("p1")
		spec := networked(engine, user, user)
		spec.Egress.Domains = []string{}
		var c *Container
		engine.script(func(do func() error) error {
			err := errors.Join(onNetworks{e}.Clear(t.Context(), "isolated", nil),
				engine.RemoveNetwork(t.Context(), "daycare-isolated"))
			if c.ID() != "" || !c.is(life.Starting) {
				t.Errorf("it is %v, with the id %q", c.Now().State, c.ID())
			}
			return errors.Join(err, do())
		}, "Create")
		c, _, err := e.Add(spec, spec.Platform, quota.Token{})
		if err != nil {
			t.Fatal(err)
		}
		e.Make(t.Context(), c)
		synctest.Wait()
		if why := c.Now().Why; !c.is(life.Gone) || !errors.Is(why, ErrLost) {
			t.Errorf("it is %v: %v", c.Now().State, why)
		}
		if left := engine.Containers(); len(left) != 0 || len(o.has) != 0 || len(e.inState(inUse...)) != 0 {
			t.Errorf("left are %+v, with the addresses %v", left, o.has)
		}
	})
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
					engine.obey(p)
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

// A gateway that ends again while its network is checked has it checked once more, and whoever
// could not be bound is bound once.
func TestNetworksAreMendedOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, o, e, _ := opening(t)
		o.faults = []error{errNotNow}
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait()
		engine.takes(time.Second, "Inspect")
		for range 2 {
			e.heard(engines.Event{Kind: engines.Ended, Container: "g", Labels: map[string]string{
				labelInstance: "test", labelGateway: "x",
			}})
			synctest.Wait()
		}
		waittest.Pass(5 * time.Second)
		if opened, bound := o.asked(); len(opened) != 3 || len(bound) != 1 {
			t.Errorf("opened %d times, bound: %v", len(opened), bound)
		}
	})
}
