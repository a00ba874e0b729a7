package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/guard"
	"github.com/daycare-run/sandbox/internal/egress/rules"
	"github.com/daycare-run/sandbox/internal/policy"
)

// checkEvery is how often the rules are compared with the kernel's when nothing says that they changed.
const checkEvery = 30 * time.Second

// closeLimit bounds the end of a gate's servers.
const closeLimit = 5 * time.Second

// gate is one network's rules and servers.
type gate struct {
	owner     *Egress
	network   dockerexec.Network
	admits    policy.Addresses
	endpoints endpoints
	table     table
	cables    *cables // nil where nothing can be filtered
	dns       *dnsfilter.Server
	guard     *guard.Guard // nil where there is no gateway whose connections it could take

	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	closed  bool // nothing more is added to work
	pending int  // of work: what later began
}

// table is *rules.Table, or none. It has the open containers.
type table interface {
	Apply(context.Context, rules.State) error
	Add(netip.Addr) error
	Bind(rules.Binding) error
	Remove(netip.Addr) error
	Forget(netip.Addr) error
	ForgetStrangers() error
	Keep(ctx context.Context, interval time.Duration) error
	Close()
}

// none is where there can be no rules.
type none struct{}

func (none) Apply(context.Context, rules.State) error        { return nil }
func (none) Add(netip.Addr) error                            { return nil }
func (none) Bind(rules.Binding) error                        { return nil }
func (none) Remove(netip.Addr) error                         { return nil }
func (none) Forget(netip.Addr) error                         { return nil }
func (none) ForgetStrangers() error                          { return nil }
func (none) Keep(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }
func (none) Close()                                          {}

// openGate closes first and opens then: the rules are in place before anything listens.
func (e *Egress) openGate(ctx context.Context, n dockerexec.Network, running []dockerexec.Endpoint) (_ *gate, err error) {
	profile, known := e.cfg.Profiles[n.Profile]
	if !known {
		return nil, fmt.Errorf("there is no profile %q", n.Profile)
	}
	upstreams, err := profile.upstreams()
	if err != nil {
		return nil, err
	}
	g := &gate{owner: e, network: n, admits: e.admits(profile)}
	g.endpoints.init(n)
	var undo []func()
	defer func() {
		for i := len(undo) - 1; err != nil && i >= 0; i-- {
			undo[i]()
		}
	}()

	if g.table, err = e.openTable(g); err != nil {
		return nil, err
	}
	undo = append(undo, g.table.Close)
	if g.cables, err = e.openCables(ctx, n); err != nil {
		return nil, err
	}
	undo = append(undo, g.cables.close)
	state, attached := g.restore(running)
	if err := g.table.Apply(ctx, state); err != nil {
		return nil, err
	}
	if err := g.table.ForgetStrangers(); err != nil {
		return nil, err
	}
	if err := g.cables.keep(attached); err != nil {
		return nil, err
	}

	g.dns, err = dnsfilter.New(dnsfilter.Config{
		Listen:           []netip.AddrPort{netip.AddrPortFrom(n.Gateway, dnsPort)},
		Sockets:          g.cables.dns(),
		Profiles:         []dnsfilter.Profile{{Name: n.Profile, Upstreams: upstreams, Admits: g.admits.Admits}},
		Client:           g.endpoints.dnsClient,
		QueriesPerSecond: e.cfg.QueriesPerSecond, Burst: 2 * e.cfg.QueriesPerSecond,
		Decided: g.asked, Answered: g.answered, Log: e.cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	if err := g.dns.Start(ctx); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = g.dns.Shutdown(ctx) })

	if err := writeResolvConf(e.ResolvConf(n.Profile), n.Gateway); err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(e.ctx)
	if err := g.startGuard(life); err != nil {
		stop()
		return nil, err
	}
	g.stop = stop
	g.work.Go(func() { g.keep(life) })
	g.startRelays(life)
	e.cfg.Log.Info().Str("network", n.Bridge).Stringer("subnet", n.Subnet).Strs("upstreams", upstreams).Int("containers", len(running)).Msg("network open")
	return g, nil
}

// openTable connects to the kernel's rules.
func (e *Egress) openTable(g *gate) (table, error) {
	if e.weak != nil {
		return none{}, nil
	}
	n := g.network
	return rules.New(rules.Config{
		Table: e.cfg.Name + "-" + n.Profile,
		Bridges: []rules.Bridge{{
			Name: n.Bridge, Gateway: n.Gateway, Subnet: n.Subnet, NonPublic: append(g.admits.Excluded4(), e.own.prefixes()...),
		}},
		Questions: gatewayQuestions * e.cfg.QueriesPerSecond, Connections: e.cfg.MaxConnections,
		ClosedPorts: e.cfg.closedPorts(), Log: e.cfg.Log,
	})
}

// mailPort is where mail is handed over to other servers: what is sent there from a host is counted against it.
const mailPort = 25

// closedPorts are those that nobody reaches unless the operator has named them.
func (c Config) closedPorts() []uint16 {
	if slices.Contains(c.ExtraPorts, mailPort) {
		return nil
	}
	return []uint16{mailPort}
}

// startGuard serves the connections that come to the gateway.
func (g *gate) startGuard(life context.Context) error {
	if g.cables == nil {
		return nil
	}
	limits := guard.DefaultLimits()
	limits.Connections = g.owner.cfg.MaxConnections
	opened, err := guard.New(guard.Config{
		TLS: g.cables.TLS, HTTP: g.cables.HTTP,
		Client: g.endpoints.guardClient,
		Resolve: func(ctx context.Context, client guard.Client, name string) ([]netip.Addr, error) {
			return g.dns.Resolve(ctx, client.(*endpoint).asks, name)
		},
		Known: func(client guard.Client, name string) ([]netip.Addr, bool) {
			return g.dns.Known(client.(*endpoint).asks, name)
		},
		MayConnect: func(_ guard.Client, addr netip.Addr) bool { return g.admits.Admits(addr) },
		Decided:    g.connected,
		Limits:     limits,
		Budget:     g.owner.budget,
		Logger:     g.owner.cfg.Log,
	})
	if err != nil {
		return err
	}
	g.guard = opened
	return g.guard.Start(life)
}

const dnsPort = 53

// keep holds the kernel to the rules until the gate closes.
func (g *gate) keep(life context.Context) {
	for life.Err() == nil {
		err := g.table.Keep(life, checkEvery)
		if life.Err() != nil {
			return
		}
		g.owner.cfg.Log.Error().Err(err).Str("network", g.network.Bridge).Msg("cannot watch the rules; trying again")
		pause(life, 10*time.Millisecond)
	}
}

// close ends the servers and leaves the rules.
func (g *gate) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	g.stop()
	err := g.dns.Shutdown(ctx)
	if g.guard != nil {
		err = errors.Join(err, g.guard.Shutdown(ctx))
	}
	if err != nil {
		g.owner.cfg.Log.Warn().Err(err).Str("network", g.network.Bridge).Msg("a server of the network does not end")
	}
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.work.Wait()
	g.table.Close()
	g.cables.close()
}

// laterAtOnce is how many addresses of a network wait at once for what is left of their containers to go.
const laterAtOnce = 16

// later does what nobody needs to wait for, before the gate has closed. It blocks where too much is under way.
func (g *gate) later(do func()) {
	g.mu.Lock()
	if g.closed || g.pending == laterAtOnce {
		g.mu.Unlock()
		do()
		return
	}
	defer g.mu.Unlock()
	g.pending++
	g.work.Go(func() {
		do()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.pending--
	})
}

// restore registers the containers that are there when the gate opens. It returns what their rules are, and
// the addresses of those that are filtered. One whose interface is not found has no way until it is bound.
func (g *gate) restore(list []dockerexec.Endpoint) (rules.State, map[netip.Addr]bool) {
	var state rules.State
	filtered := map[netip.Addr]bool{}
	for _, e := range list {
		ep, err := newEndpoint(e.Spec)
		if err != nil || !g.endpoints.restore(ep, e.Addr) {
			continue // not of this network, or the second one there: Bind finds it missing
		}
		if !ep.open {
			filtered[ep.addr] = true
			continue
		}
		state.Containers = append(state.Containers, ep.addr)
		if binding, err := g.binding(e); err == nil {
			state.Bindings = append(state.Bindings, binding)
		}
	}
	return state, filtered
}

// register registers the containers that were not known when the gate opened.
func (g *gate) register(list []dockerexec.Endpoint) error {
	for _, e := range list {
		if ep, err := newEndpoint(e.Spec); err == nil && g.endpoints.restore(ep, e.Addr) {
			if err := g.expect(ep); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *gate) add(spec dockerexec.Spec) (netip.Addr, error) {
	ep, err := newEndpoint(spec)
	if err != nil {
		return netip.Addr{}, err
	}
	if err := g.endpoints.register(ep); err != nil {
		return netip.Addr{}, err
	}
	return ep.addr, g.expect(ep)
}

// expect lets an address be used by a container that is not bound yet. After an error it is free again.
func (g *gate) expect(ep *endpoint) (err error) {
	switch {
	case ep.open:
		err = explain(g.table.Add(ep.addr))
	case g.cables == nil:
		err = fmt.Errorf("no call can be filtered by name here (%w): ask for no network, or for \"*\": %w", g.owner.weak, errdefs.ErrPermissionDenied)
	}
	if err != nil {
		g.endpoints.release(ep)
	}
	return err
}

func (g *gate) bind(e dockerexec.Endpoint) error {
	ep := g.endpoints.at(e.Addr)
	if ep == nil || ep.container != e.Spec.ContainerName() {
		return fmt.Errorf("address %s is not that of %s: %w", e.Addr, e.Spec.ContainerName(), errdefs.ErrFailedPrecondition)
	}
	if g.owner.weak != nil {
		return nil // nor may it be asked where the container is
	}
	if !ep.open {
		return explain(g.cables.plug(e))
	}
	binding, err := g.binding(e)
	if err != nil {
		return explain(err)
	}
	return explain(g.table.Bind(binding))
}

// binding finds out which port of the bridge is a container's.
func (g *gate) binding(e dockerexec.Endpoint) (rules.Binding, error) {
	veth, err := g.owner.links.vethOf(e.PID, g.network.Bridge)
	return rules.Binding{Veth: veth, MAC: e.MAC, Addr: e.Addr}, err
}

func (g *gate) remove(addr netip.Addr) {
	ep := g.endpoints.at(addr)
	if ep == nil {
		return
	}
	ep.revoke()
	// The address stays taken until nothing is left that its next container could inherit.
	if err := g.cutOff(ep); err != nil {
		g.owner.cfg.Log.Error().Err(err).Stringer("address", ep.addr).Msg("cannot cut a container off; its address is not used again")
		return
	}
	if !g.endpoints.unregister(ep) {
		return
	}
	if !ep.open {
		g.endpoints.release(ep)
		return
	}
	g.later(func() {
		if err := g.table.Forget(ep.addr); err != nil {
			g.owner.cfg.Log.Error().Err(err).Stringer("address", ep.addr).Msg("a container is cut off, but not forgotten; its address is not used again")
			return
		}
		g.endpoints.release(ep)
	})
}

// cutOff lets nothing more come from a container.
func (g *gate) cutOff(ep *endpoint) error {
	switch {
	case ep.open:
		return g.table.Remove(ep.addr)
	case g.cables != nil:
		return g.cables.Detach(ep.addr)
	default:
		return nil
	}
}

// writeResolvConf replaces the file's content in place: containers have the file mounted.
func writeResolvConf(file string, gateway netip.Addr) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("cannot make the folder of resolv.conf: %w", err)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, "nameserver %s\noptions timeout:5 attempts:2\n", gateway), 0o644); err != nil {
		return fmt.Errorf("cannot write resolv.conf: %w", err)
	}
	return nil
}
