package dockerexec

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	engines "github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// openings are Networks that remember what they were asked. Open fails with each of faults first.
type openings struct {
	networks.Filter
	faults    []error
	meanwhile func() // is called by each Open before anything is registered
	gate      *networks.Gateway

	mu     sync.Mutex
	opened [][]networks.Endpoint
	is     bool
	has    map[uint64]netip.Addr
	bound  []netip.Addr
}

func (o *openings) Subnets() ([]netip.Prefix, error) {
	return []netip.Prefix{netip.MustParsePrefix("10.1.4.0/22")}, nil
}

func (o *openings) Gateway(networks.Network) (networks.Gateway, bool, error) {
	if o.gate != nil {
		return *o.gate, true, nil
	}
	return networks.Gateway{}, false, nil
}

func (o *openings) ResolvConf(string) string { return "/resolv.conf" }

func (o *openings) Link(_ networks.Network, addr netip.Addr, _ net.HardwareAddr) string {
	return "link " + addr.String()
}

func (o *openings) Open(_ context.Context, _ networks.Network, running []networks.Endpoint) error {
	if o.meanwhile != nil {
		o.meanwhile()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened = append(o.opened, running)
	if len(o.faults) > 0 {
		err := o.faults[0]
		o.faults = o.faults[1:]
		return err
	}
	o.is = true
	for _, at := range running {
		o.has[at.Holder] = at.Addr
	}
	return nil
}

func (o *openings) Add(_ networks.Party, holder uint64) (netip.Addr, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	addr := netip.AddrFrom4([4]byte{10, 1, 1, byte(holder)})
	o.has[holder] = addr
	return addr, nil
}

func (o *openings) Bind(at networks.Endpoint) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.is:
		return fmt.Errorf("not open: %w", cerrdefs.ErrUnavailable)
	case o.has[at.Holder] != at.Addr:
		return fmt.Errorf("its interface is gone: %w", cerrdefs.ErrNotFound)
	}
	o.bound = append(o.bound, at.Addr)
	return nil
}

func (o *openings) Remove(_ string, holder uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.has, holder)
}

// asked returns what it was asked until now.
func (o *openings) asked() (opened [][]networks.Endpoint, bound []netip.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.opened), slices.Clone(o.bound)
}

// opening is an executor on an engine that has a persistent container on a network.
func opening(t *testing.T) (*scriptedEngine, *openings, *Executor, string) {
	engine, o := newScriptedEngine(t), &openings{has: map[uint64]netip.Addr{}}
	id := engine.add(networked(engine, "alice", "s1"))
	engine.Change(id, func(c *engines.Container) {
		mac := net.HardwareAddr{2, 66, 10, 1, 0, 5}
		c.Endpoints = []engines.Endpoint{{Network: "daycare-isolated", Addr: foundThere, MAC: mac}}
	})
	engine.AddNetwork(engines.Network{
		Name: "daycare-isolated", Bridge: "daycare-iso",
		Labels: map[string]string{labelInstance: "test"},
		Subnet: netip.MustParsePrefix("10.1.0.0/22"), Gateway: netip.MustParseAddr("10.1.0.1"),
	})
	e := engine.executor()
	e.cfg.Filter = o
	e.nets = e.newNetworks()
	return engine, o, e, id
}

var foundThere = netip.MustParseAddr("10.1.0.5")

func networked(engine *scriptedEngine, user, persistent string) Spec {
	spec := engine.spec(user)
	spec.Platform.Network, spec.Persistent = "daycare", persistent
	spec.Egress = Egress{Profile: "isolated", Domains: []string{"a.example"}, Denied: []string{}}
	return spec
}

// joins has a container of a Spec get its place on its network, without being made.
func joins(ctx context.Context, e *Executor, spec Spec) error {
	return e.join(ctx, e.newContainer(spec, spec.Fingerprint(), "", false))
}

// named checks that each opening until the first that succeeded named the container that was found.
func (o *openings) named(t *testing.T, times int) {
	t.Helper()
	opened, _ := o.asked()
	if len(opened) < times {
		t.Fatalf("the network was opened %d times, want %d", len(opened), times)
	}
	for i, list := range opened[:times] {
		if len(list) != 1 || list[0].Addr != foundThere || list[0].MAC == nil || !list[0].Persistent {
			t.Errorf("opening %d named %+v", i, list)
		}
	}
}

// Whoever opens a network first names what an earlier service left on it, also a call that comes before that was found:
// what is not named loses its network, and then its programs are ended.
func TestACallOpensANetworkBeforeAnythingWasFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, o, e, id := opening(t)
		engine.fails(2) // the lists of Start, and of who follows the events
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait()
		if opened, _ := o.asked(); len(opened) != 0 || e.runningDetached(id) != nil {
			t.Fatalf("found in spite of the engine: %v", opened)
		}
		if err := e.run(t.Context(), networked(engine, "bob", "")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		o.named(t, 1)
		if _, bound := o.asked(); !slices.Contains(bound, foundThere) || e.runningDetached(id) == nil || len(engine.Calls("Signal", "Remove")) != 0 {
			t.Errorf("bound: %v, ended: %v", bound, engine.Calls("Signal", "Remove"))
		}
	})
}

// As long as that cannot be found, no network is opened.
func TestNoNetworkIsOpenedBlindly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, o, e, _ := opening(t)
		defer e.Shutdown()
		engine.fails(1)
		if err := joins(t.Context(), e, networked(engine, "bob", "")); err == nil || len(o.opened) != 0 {
			t.Errorf("%v, %v", o.opened, err)
		}
		e.mu.Lock()
		e.closed = true // as in Shutdown, when nothing is taken over any more
		e.mu.Unlock()
		if err := joins(t.Context(), e, networked(engine, "bob", "")); !errors.Is(err, ErrStopping) || len(o.opened) != 0 {
			t.Errorf("%v, %v", o.opened, err)
		}
	})
}

// When a network can be opened again, what was found on it is still named, and gets its network back.
func TestANetworkThatCannotBeOpenedAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, o, e, _ := opening(t)
		o.faults = []error{errors.New("port 53 is taken"), errors.New("port 53 is taken")}
		var told atomic.Int64
		e.cfg.Events = events.New(func(of *events.Event) {
			if i, is := of.Detail.(Incident); is && i.What == "a process keeps running without a network" {
				told.Add(1)
			}
		})
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait()
		waittest.Pass(2*networkCheck + time.Second)
		o.named(t, 3)
		if _, bound := o.asked(); len(bound) != 1 || bound[0] != foundThere || len(engine.Calls("Signal", "Remove")) != 0 {
			t.Errorf("bound: %v, ended: %v", bound, engine.Calls("Signal", "Remove"))
		}
		if n := told.Load(); n != 1 {
			t.Errorf("that was told %d times", n)
		}
		waittest.Pass(networkCheck)
		if opened, bound := o.asked(); len(bound) != 1 || len(opened) != 4 || len(opened[3]) != 0 {
			t.Errorf("what is known was named again: %v, bound: %v", opened, bound)
		}
	})
}

// endpointLimit is how long package networks waits for Docker's word about a container.
const endpointLimit = 15 * time.Second

// A container about which Docker says nothing delays nothing for long, and keeps its network.
func TestAContainerThatDockerIsSilentAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, o, e, id := opening(t)
		engine.Script(func(call enginetest.Call, do func() error) error {
			if call.Verb == "Inspect" && call.Name == id {
				<-call.Context.Done()
				return call.Context.Err()
			}
			return do()
		})
		begun := time.Now()
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		if took := time.Since(begun); took != endpointLimit {
			t.Errorf("it took %v", took)
		}
		o.named(t, 1)
		waittest.Pass(endpointLimit + time.Second)
		engine.Script(nil)
		waittest.Pass(networkCheck)
		if _, bound := o.asked(); len(bound) != 1 || bound[0] != foundThere || len(engine.Calls("Signal", "Remove")) != 0 {
			t.Errorf("bound: %v, ended: %v", bound, engine.Calls("Signal", "Remove"))
		}
	})
}

// What ends just when its network is opened has left it then.
func TestAContainerThatEndsWhileItsNetworkIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, o, e, id := opening(t)
		o.meanwhile = func() { e.died(id) }
		e.cfg.Events = events.New(func(of *events.Event) {
			if i, is := of.Detail.(Incident); is {
				t.Errorf("told: %+v", i)
			}
		})
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait()
		o.named(t, 1)
		if len(o.has) != 0 || len(engine.Calls("Signal")) != 0 {
			t.Errorf("who has ended has an address: %v, and is ended: %v", o.has,
				engine.Calls("Signal"))
		}
	})
}

// Whoever gives a container up while its network is opened, and has not forgotten it yet, leaves no address behind.
func TestAContainerThatLeavesWhileItsNetworkIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o, e, id := opening(t)
		o.meanwhile = func() { e.runningDetached(id).net.Leave() }
		e.Start(t.Context(), anything{})
		defer e.Shutdown()
		synctest.Wait()
		o.named(t, 1)
		if len(o.has) != 0 {
			t.Errorf("who has left has an address: %v", o.has)
		}
	})
}

// Nothing is compared with Docker before Start has read what earlier services wrote down.
func TestNoComparisonBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, o, e, id := opening(t)
		e.begun = make(chan struct{})
		defer e.Shutdown()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := joins(ctx, e, networked(engine, "bob", "")); !errors.Is(err, context.DeadlineExceeded) || len(o.opened) != 0 || e.runningDetached(id) != nil {
			t.Errorf("%v, %v", o.opened, err)
		}
		close(e.begun)
		if err := joins(t.Context(), e, networked(engine, "bob", "")); err != nil {
			t.Error(err)
		}
		o.named(t, 1)
	})
}

// Persistent containers that are listed can be used, also before anything else was compared.
func TestListedContainersCanBeResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, _, e, id := opening(t)
		defer e.Shutdown()
		if err := engine.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if list, err := e.Persistent(t.Context()); err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		if err := e.ResumeDetached(t.Context(), id); err != nil {
			t.Error(err)
		}
		if found, _ := engine.Find(id); found.State != specs.StateRunning {
			t.Error("it was not resumed")
		}
	})
}

// A persistent container that was found reaches what its sandbox may reach now, and not what it
// could when it was made.
func TestAFoundContainerReachesWhatItMayNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o, e, _ := opening(t)
		now := Egress{Profile: "isolated", Domains: []string{"b.example"}}
		e.Start(t.Context(), wanting{Wanted{Reach: &now}})
		defer e.Shutdown()
		synctest.Wait()
		if got := o.opened[0][0].Egress.Domains; !slices.Equal(got, now.Domains) {
			t.Errorf("%q", got)
		}
	})
}

// wanting is a Gate that lets all start, and wants the same of all.
type wanting struct{ of Wanted }

func (wanting) May(string) error     { return nil }
func (w wanting) Wanted(Spec) Wanted { return w.of }
