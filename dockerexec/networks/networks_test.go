package networks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/engine/enginetest"
)

// lab is the networks of a service on an engine in memory, with a filter and containers that
// remember what they were asked. The filter refuses what is not as networks.Filter says.
type lab struct {
	t      *testing.T
	engine *enginetest.Engine
	*Networks

	gate      Gateway
	gated     bool
	meanwhile func()  // is called by each Open before it does anything
	faults    []error // of the next Opens

	mu      sync.Mutex
	asked   []string
	opened  [][]Endpoint
	subnet  netip.Prefix          // that is open
	has     map[uint64]netip.Addr // by holder
	cleared func() error
	clears  []string // who was bound at the last Clear
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, engine: enginetest.New(t.Context()), has: map[uint64]netip.Addr{}}
	l.Networks = New(Config{
		Engine: l.engine, Filter: l, Containers: l, Log: zerolog.Nop(),
		Labels: map[string]string{"owner": "me"}, Owner: "owner", GatewayLabel: "gateway",
		Image: func(context.Context) (string, error) { return "image", nil },
	})
	return l
}

func (l *lab) note(format string, values ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, fmt.Sprintf(format, values...))
}

// was returns what was asked since it was called last.
func (l *lab) was() (asked []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	asked, l.asked = l.asked, nil
	return asked
}

func (l *lab) expect(what string, want ...string) {
	l.t.Helper()
	if got := l.was(); !slices.Equal(got, want) {
		l.t.Errorf("%s: asked for %q, not %q", what, got, want)
	}
}

func (l *lab) Subnets() ([]netip.Prefix, error) {
	return []netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/22"), netip.MustParsePrefix("10.1.4.0/22"),
	}, nil
}

func (l *lab) Gateway(Network) (Gateway, bool, error) { return l.gate, l.gated, nil }

func (l *lab) Open(_ context.Context, n Network, at []Endpoint) error {
	if l.meanwhile != nil {
		l.meanwhile()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opened = append(l.opened, at)
	if len(l.faults) > 0 {
		err := l.faults[0]
		l.faults = l.faults[1:]
		if err != nil {
			return err
		}
	}
	l.subnet = n.Subnet
	for _, e := range at {
		l.has[e.Holder] = e.Addr
	}
	return nil
}

// holds refuses who has no address, or not this one.
func (l *lab) holds(holder uint64, addr netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if has, known := l.has[holder]; !l.subnet.IsValid() || !known || addr.IsValid() && addr != has {
		return fmt.Errorf("%d has not %s: %w", holder, addr, cerrdefs.ErrFailedPrecondition)
	}
	return nil
}

func (l *lab) ResolvConf(profile string) string { return "/resolv-" + profile }

func (l *lab) Link(_ Network, addr netip.Addr, mac net.HardwareAddr) string {
	return fmt.Sprint("link ", addr, " ", mac)
}

func (l *lab) Add(p Party, holder uint64) (netip.Addr, error) {
	l.note("add %s as %d", p.Name, holder)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.has[holder]; !l.subnet.IsValid() || known {
		return netip.Addr{}, fmt.Errorf("%d cannot be added: %w", holder, cerrdefs.ErrConflict)
	}
	octets := l.subnet.Addr().As4()
	octets[2], octets[3] = octets[2]+1, byte(holder)
	l.has[holder] = netip.AddrFrom4(octets)
	return l.has[holder], nil
}

func (l *lab) Bind(at Endpoint) error {
	l.note("bind %s at %s for %v", at.Name, at.Addr, at.Egress.Domains)
	return l.holds(at.Holder, at.Addr)
}

func (l *lab) Assign(holder uint64, from, to Party) error {
	l.note("assign %d of %s to %s", holder, from.User, to.User)
	return l.holds(holder, netip.Addr{})
}

func (l *lab) Change(at Endpoint) error {
	l.note("change %s to %v", at.Name, at.Egress.Domains)
	return l.holds(at.Holder, at.Addr)
}

func (l *lab) Remove(profile string, holder uint64) {
	l.note("remove %d from %s", holder, profile)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.has, holder)
}

func (l *lab) Clear(_ context.Context, profile string, bound []string) error {
	l.note("clear %s", profile)
	l.clears = bound
	if l.cleared != nil {
		return l.cleared()
	}
	return nil
}

func candidate(name string, domains ...string) Candidate {
	return Candidate{
		Party: Party{
			Name: name, User: name, Egress: Egress{Profile: "isolated", Domains: domains},
		},
		Base: "daycare",
	}
}

// join has a container made on its network.
func (l *lab) join(c Candidate) (m *Member, id string) {
	l.t.Helper()
	m, err := l.Join(l.t.Context(), c)
	if err != nil {
		l.t.Fatal(err)
	}
	w := m.Wiring()
	id, err = l.engine.Create(l.t.Context(), engine.Spec{
		Name: c.Name, Net: &engine.Attachment{Network: w.Network, Addr: w.Addr},
	})
	if err == nil {
		err = l.engine.Start(l.t.Context(), id)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return m, id
}

// left puts a container on the network that an earlier service has left there.
func (l *lab) left(c Candidate) (m *Member, listed engine.Container) {
	at := engine.Endpoint{
		Network: "daycare-isolated", Addr: netip.MustParseAddr("10.1.0.5"),
		MAC: net.HardwareAddr{2, 66, 10, 1, 0, 5},
	}
	listed = engine.Container{Endpoints: []engine.Endpoint{at}}
	listed.ID = l.engine.Add(listed)
	return l.Found(c, listed), listed
}

// Whoever is the first on a network has it made, in a subnet that is free, and nothing passes
// before Bind.
func TestAContainerOnItsNetwork(t *testing.T) {
	l := newLab(t)
	l.engine.AddNetwork(engine.Network{Name: "x", Subnet: netip.MustParsePrefix("10.1.0.0/16")})
	if _, err := l.Join(t.Context(), candidate("early")); err == nil ||
		!strings.Contains(err.Error(), engine.ErrSubnetTaken.Error()) {
		t.Errorf("a network in a subnet that is taken: %v", err)
	}
	if err := l.engine.RemoveNetwork(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	l.engine.AddNetwork(engine.Network{Name: "x", Subnet: netip.MustParsePrefix("10.1.0.0/24")})
	m, id := l.join(candidate("c", "a.example"))
	made, err := l.engine.FindNetwork(t.Context(), "daycare-isolated", "daycare-iso")
	if err != nil || made.Labels["owner"] != "me" || made.Subnet.String() != "10.1.4.0/22" {
		t.Errorf("%+v, %v", made, err)
	}
	want := Wiring{
		Network: "daycare-isolated", Addr: netip.MustParseAddr("10.1.5.1"),
		Gateway: netip.MustParseAddr("10.1.4.1"), ResolvConf: "/resolv-isolated",
	}
	if m.Wiring() != want {
		t.Errorf("%+v", m.Wiring())
	}
	l.expect("it joins", "add c as 1")
	if again, err := m.Bind(t.Context(), id); again || err != nil {
		t.Error(err)
	}
	l.expect("it is bound", "bind c at 10.1.5.1 for [a.example]")
	now := Egress{Profile: "isolated", Domains: []string{"b.example"}}
	if err := m.Change(t.Context(), id, now); err != nil {
		t.Error(err)
	}
	if _, err := m.Bind(t.Context(), id); err != nil {
		t.Error(err)
	}
	l.expect("it reaches something else", "change c to [b.example]",
		"bind c at 10.1.5.1 for [b.example]")
	m.Leave()
	m.Leave()
	l.expect("it leaves, twice", "remove 1 from isolated")
}

// A container without a network has a place of none.
func TestAContainerWithoutANetwork(t *testing.T) {
	l := newLab(t)
	c := candidate("c")
	c.Egress = Egress{}
	m, err := l.Join(t.Context(), c)
	if m != nil || err != nil || l.Found(c, engine.Container{}) != nil {
		t.Fatalf("%+v, %v", m, err)
	}
	again, err := m.Bind(t.Context(), "x")
	err = errors.Join(err, m.Assign(c))
	m.Leave()
	if again || err != nil || m.Failed() || m.Wiring() != (Wiring{}) {
		t.Errorf("%v, %+v", err, m)
	}
	l.expect("it is nowhere")
}

// A container of the pool has no open network before it has a user; a filtered one is connected
// before, and reaches nothing.
func TestAContainerOfThePool(t *testing.T) {
	for domains, want := range map[string][]string{
		"*": {
			"add pooled as 1", "assign 1 of pooled to alice", "bind alice at 10.1.1.1 for [*]",
		},
		"": {
			"add pooled as 1", "bind pooled at 10.1.1.1 for []", "assign 1 of pooled to alice",
		},
	} {
		l := newLab(t)
		c := candidate("pooled")
		if c.Pooled = true; domains != "" {
			c.Egress.Domains = []string{domains}
		}
		m, id := l.join(c)
		if _, err := m.Bind(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		to := c
		to.Name, to.User, to.Pooled = "alice", "alice", false
		if err := m.Assign(to); err != nil {
			t.Error(err)
		}
		l.expect(domains, want...)
	}
}

// Containers of an earlier service are named by whoever opens their network first, until the filter
// knows them.
func TestFoundContainersAreNamed(t *testing.T) {
	l := newLab(t)
	l.faults = []error{errors.New("port 53 is taken"), nil}
	m, listed := l.left(candidate("old", "a.example"))
	for i := range 3 {
		if _, err := l.Ready(t.Context(), "daycare", "isolated"); (err != nil) != (i == 0) {
			t.Fatal(err)
		}
	}
	for i, want := range []int{1, 1, 0} {
		if got := l.opened[i]; len(got) != want || want > 0 && (got[0].Name != "old" ||
			got[0].Addr.String() != "10.1.0.5" || got[0].PID == 0) {
			t.Errorf("opening %d named %+v", i, got)
		}
	}
	if _, err := m.Bind(t.Context(), listed.ID); err != nil {
		t.Error(err)
	}
	l.expect("it is bound", "bind old at 10.1.0.5 for [a.example]")
}

// Whoever leaves while its network is opened leaves no address behind.
func TestAContainerThatLeavesWhileItsNetworkIsOpened(t *testing.T) {
	l := newLab(t)
	m, _ := l.left(candidate("old"))
	l.meanwhile = m.Leave
	if _, err := l.Ready(t.Context(), "daycare", "isolated"); err != nil {
		t.Fatal(err)
	}
	l.expect("it leaves twice", "remove 1 from isolated", "remove 1 from isolated")
	if len(l.has) != 0 {
		t.Errorf("who has left has an address: %v", l.has)
	}
}

// A container about which the engine says nothing holds an opening up for a while, and is named all
// the same.
func TestAContainerThatTheEngineIsSilentAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		m, listed := l.left(candidate("old"))
		l.engine.Script(func(call enginetest.Call, do func() error) error {
			if call.Verb == "Inspect" {
				<-call.Context.Done()
				return call.Context.Err()
			}
			return do()
		})
		begun := time.Now()
		_, err := l.Ready(t.Context(), "daycare", "isolated")
		if took := time.Since(begun); err != nil || took != endpointLimit || len(l.opened[0]) != 1 {
			t.Errorf("%v after %v: %v", l.opened, took, err)
		}
		for _, again := range []bool{false, true} {
			got, err := m.Bind(t.Context(), listed.ID)
			if err == nil || got != again || !m.Failed() {
				t.Errorf("again: %v, %v", got, err)
			}
		}
		l.engine.Script(nil)
		if again, err := m.Bind(t.Context(), listed.ID); !again || err != nil || m.Failed() {
			t.Errorf("%v, %v", again, err)
		}
	})
}

// One that the engine has elsewhere, or not any more, is not bound.
func TestAContainerThatIsNotOnItsNetwork(t *testing.T) {
	for what, change := range map[string]func(*engine.Container){
		"off it":     func(c *engine.Container) { c.Endpoints = nil },
		"on another": func(c *engine.Container) { c.Endpoints[0].Network = "bridge" },
		"on another as well": func(c *engine.Container) {
			c.Endpoints = append(c.Endpoints, c.Endpoints[0])
		},
		"without an address": func(c *engine.Container) { c.Endpoints[0].Addr = netip.Addr{} },
		"without a MAC":      func(c *engine.Container) { c.Endpoints[0].MAC = nil },
		"ended":              func(c *engine.Container) { c.State = "stopped" },
	} {
		l := newLab(t)
		m, id := l.join(candidate("c"))
		l.engine.Change(id, change)
		if _, err := m.Bind(t.Context(), id); err == nil {
			t.Errorf("%s: it is bound", what)
		}
		l.expect(what, "add c as 1")
	}
}

// A network found under our network's name is ours, ours to replace, or somebody else's, which is
// left alone.
func TestFind(t *testing.T) {
	wanted := Network{Profile: "isolated", Name: "daycare-isolated", Bridge: "daycare-iso"}
	for name, c := range map[string]struct {
		change func(*engine.Network)
		class  func(error) bool
	}{
		"as it was made": {func(*engine.Network) {}, nil},
		"of another service": {
			func(n *engine.Network) { n.Labels["owner"] = "other" }, cerrdefs.IsConflict,
		},
		"of nobody, unused": {
			func(n *engine.Network) { n.Labels = nil }, cerrdefs.IsFailedPrecondition,
		},
		"of nobody, in use": {
			func(n *engine.Network) { n.Labels, n.InUse = nil, true }, cerrdefs.IsConflict,
		},
		"changed": {
			func(n *engine.Network) { n.Fault = "is of another kind" },
			cerrdefs.IsFailedPrecondition,
		},
		"not there": {nil, cerrdefs.IsNotFound},
	} {
		l := newLab(t)
		if c.change != nil {
			found := engine.Network{
				Name: wanted.Name, Bridge: wanted.Bridge, Labels: map[string]string{"owner": "me"},
				Subnet:  netip.MustParsePrefix("10.1.0.0/22"),
				Gateway: netip.MustParseAddr("10.1.0.1"),
			}
			c.change(&found)
			l.engine.AddNetwork(found)
		}
		got, err := l.find(t.Context(), wanted)
		switch {
		case c.class == nil && (err != nil || got.Subnet.String() != "10.1.0.0/22" ||
			got.Gateway.String() != "10.1.0.1"):
			t.Errorf("%s: %+v, %v", name, got, err)
		case c.class != nil && !c.class(err):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A network that somebody has changed is recreated once the containers on it are gone, for which
// one that is being made gets a while.
func TestAChangedNetworkIsRecreated(t *testing.T) {
	for _, remains := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t)
			m, id := l.join(candidate("c"))
			_, making := l.join(candidate("making"))
			l.was()
			l.engine.AddNetwork(engine.Network{
				Name: "daycare-isolated", Bridge: "daycare-iso", Fault: "is of another kind",
				Labels: map[string]string{"owner": "me"},
			})
			l.cleared = func() error {
				m.Leave()
				return l.engine.Remove(t.Context(), id)
			}
			if !remains {
				time.AfterFunc(time.Second, func() { l.engine.Lose(making, true) })
			}
			err := l.Check(t.Context())["isolated"]
			found, _ := l.engine.FindNetwork(t.Context(), "daycare-isolated", "daycare-iso")
			if recreated := found.Fault == ""; recreated == remains || (err == nil) == remains {
				t.Errorf("%+v, %v", found, err)
			}
			got := l.was()
			if !slices.Equal(got[:2], []string{"clear isolated", "remove 1 from isolated"}) {
				t.Errorf("%q", got)
			}
		})
	}
}

// A check looks at the networks that have containers, and at no others.
func TestCheckIsOfNetworksInUse(t *testing.T) {
	l := newLab(t)
	if checked := l.Check(t.Context()); len(checked) != 0 {
		t.Errorf("%v", checked)
	}
	m, _ := l.left(candidate("old"))
	if err, is := l.Check(t.Context())["isolated"]; !is || err != nil {
		t.Errorf("%v, %v", is, err)
	}
	m.Leave()
	if checked := l.Check(t.Context()); len(checked) != 0 {
		t.Errorf("%v", checked)
	}
}

// A profile has one network at a time. When its name changes, what is on the one before is ended
// once, and a check looks at the new one alone, although something has not left the other yet.
func TestANetworkWhoseNameHasChanged(t *testing.T) {
	l := gated(t)
	c := candidate("detached", "*")
	c.Base, c.Detached = "before", true
	listed := engine.Container{Endpoints: []engine.Endpoint{{Network: "before-isolated"}}}
	m := l.Found(c, listed)
	if err := l.Check(t.Context())["isolated"]; err != nil {
		t.Fatal(err)
	}
	l.join(candidate("new"))
	l.expect("the name changes", "clear isolated", "add new as 2")
	for range 20 {
		if err := l.Check(t.Context())["isolated"]; err != nil {
			t.Fatal(err)
		}
	}
	l.join(candidate("newer"))
	l.expect("it is used", "add newer as 3")
	m.Leave()
	l.expect("the last one leaves that before", "remove 1 from isolated")
}

// A container that its runtime connects is bound where it was told to be, and the engine is asked for its process alone. A later
// service finds it by the address that it has noted, if it runs.
func TestAContainerThatItsRuntimeConnects(t *testing.T) {
	l := newLab(t)
	c := candidate("c", "a.example")
	c.Linked = true
	m, err := l.Join(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	w := m.Wiring()
	if w.Link != fmt.Sprintf("link %s 02:42:0a:01:%02x:01", w.Addr, w.Addr.As4()[2]) {
		t.Errorf("%+v", w)
	}
	id := l.engine.Add(engine.Container{Name: "c"})
	if _, err := m.Bind(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	l.expect("it is bound", "add c as 1", fmt.Sprintf("bind c at %s for [a.example]", w.Addr))
	m.Leave()
	l.expect("it leaves", "remove 1 from isolated")
	c.Name, c.At = "found", w.Addr
	for state, known := range map[specs.ContainerState]bool{specs.StateRunning: true, specs.StateStopped: false} {
		found := l.Found(c, engine.Container{ID: "x", State: state})
		if is := found.found != nil; is != known || known && (found.found.Addr != w.Addr || found.found.MAC.String() != macOf(w.Addr).String()) {
			t.Errorf("%s: %+v", state, found.found)
		}
		found.Leave()
	}
	c.Linked, c.At = false, netip.Addr{}
	if other, err := l.Join(t.Context(), c); err != nil || other.Wiring().Link != "" {
		t.Errorf("%+v, %v", other, err)
	}
}
