// Package egress holds containers to the names that they may reach. It knows which container has which address. For
// each network it runs the DNS filter, the guard in the gateway that filtered containers are connected to, and the
// rules for containers that may reach all of the internet.
//
// egress.go says what there is; stack.go is one network; admission.go lets containers be on it; endpoints.go has the containers on it; gatewaylink.go connects
// the filtered ones to the gateway, and relay.go carries what is neither HTTP nor TLS; subnets.go, interfaces.go, route.go,
// own.go and resolvers.go ask about the host; reports.go turns questions of DNS into decisions.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/rules"
	"github.com/daycare-run/sandbox/internal/policy"
)

// Config is the operator's part. Fields of addresses and ports may be empty.
type Config struct {
	// Name begins the names of the nftables tables: <Name>-isolated and <Name>-local.
	Name string
	// Dir is where the resolv.conf files of containers are kept, on Docker's host.
	Dir string
	// Profiles are the ways out, by name.
	Profiles map[string]Profile
	// GatewayProgram is the file of the service's own program, which is that of gateways too. GatewayDir is a folder on
	// Docker's host for what they share with the service.
	GatewayProgram, GatewayDir string
	// Subnets are where networks are put, the preferred one first.
	Subnets []netip.Prefix
	// AlsoPublic are ranges that count as public although they are not.
	AlsoPublic []netip.Prefix
	// Own are addresses of the host's that it does not hold itself, and AskMetadata has the cloud asked for more.
	Own         []netip.Addr
	AskMetadata bool
	// ExtraPorts are the TCP ports besides 80 and 443 that filtered containers reach at allowed names.
	ExtraPorts []uint16
	// QueriesPerSecond and MaxConnections bound one container.
	QueriesPerSecond, MaxConnections int
	// MaxUserConnections bounds the connections of all of a user's containers.
	MaxUserConnections int
	// AcceptWeaker goes without rules where the kernel or the service's rights allow none: containers may
	// be open then, but not filtered.
	AcceptWeaker bool
	// MayPass is asked before each lookup and each connection; an error says that nothing new may pass. It must not block.
	// Nil is for always.
	MayPass func() error
	// Decisions takes every verdict.
	Decisions *decisions.Log
	Log       zerolog.Logger
}

// Profile is one way out.
type Profile struct {
	// Private admits private networks besides the public internet.
	Private bool
	// Upstreams are resolvers as dnsfilter takes them; none for the host's own.
	Upstreams []string
}

// Egress is the networks of one service. It implements what dockerexec.Config asks of Networks, and is safe for concurrent use.
type Egress struct {
	cfg        Config
	budget     *budget.Connections
	weak       error // why there are no rules; nil where there are
	interfaces *interfaces
	routes     *routes
	own        *ownAddresses
	ctx        context.Context // ends with Shutdown
	cancel     context.CancelFunc

	mu     sync.Mutex
	stacks map[string]*stack
	closed bool
}

// New changes nothing yet: a network has its rules and servers from Open on. The error says that rules
// cannot be made here, and what to do.
func New(cfg Config) (*Egress, error) {
	weak := Probe(cfg.Name)
	if weak != nil && !cfg.AcceptWeaker {
		return nil, fmt.Errorf("cannot hold containers to the names that they may reach: %w; or set docker.enableWeakerNestedSandbox, and calls may only have no network or all of it", weak)
	}
	if weak != nil {
		cfg.Log.Warn().Err(weak).Msg("no call can be filtered by name, only blocked or open; accepted by enableWeakerNestedSandbox")
	}
	shared, err := budget.NewConnections(cfg.MaxUserConnections)
	if err != nil {
		return nil, err
	}
	if weak == nil {
		if err := removeStaleRules(cfg.Log); err != nil {
			return nil, err
		}
	}
	interfaces, err := openInterfaces()
	if err != nil {
		return nil, err
	}
	routes, err := openRoutes()
	if err != nil {
		interfaces.close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Egress{
		cfg: cfg, budget: shared, weak: weak, interfaces: interfaces, routes: routes, own: newOwnAddresses(ctx, cfg.Own, cfg.AskMetadata, cfg.Log),
		ctx: ctx, cancel: cancel, stacks: map[string]*stack{},
	}, nil
}

// Weak returns why no container can be filtered, or nil.
func (e *Egress) Weak() error { return e.weak }

// Probe checks whether the kernel can have our rules, and makes none. The error says what is missing.
func Probe(name string) error {
	table, err := rules.New(rules.Config{
		Table: name + "-probe", Questions: 1, Connections: 1,
		Bridges: []rules.Bridge{{
			Name: "probe", Gateway: netip.MustParseAddr("192.0.2.1"), Subnet: netip.MustParsePrefix("192.0.2.0/24"),
			NonPublic: policy.Addresses{}.Excluded4(),
		}},
	})
	if err == nil {
		table.Close()
	}
	return err
}

// Subnets returns those that a new network may have, the preferred one first: none overlaps an address or a route of
// the host.
func (e *Egress) Subnets() ([]netip.Prefix, error) {
	taken, err := hostRanges()
	if err != nil {
		return nil, err
	}
	claimed, err := e.claimed()
	if err != nil {
		return nil, err
	}
	taken = append(taken, claimed...)
	free := freeSubnets(e.cfg.Subnets, taken)
	if len(free) == 0 {
		return nil, fmt.Errorf("egress.subnets: all of %v is in use on this host: name another private range", e.cfg.Subnets)
	}
	return free, nil
}

// Open makes a network ready. running are the containers on it; what others left there is closed. A network that is
// open is only checked, so this may be called before each use. The error is errdefs.ErrFailedPrecondition if the bridge
// is not there or lacks its address: it has to be recreated.
func (e *Egress) Open(ctx context.Context, n dockerexec.Network, running []dockerexec.Endpoint) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("cannot open network %s: the service is shutting down: %w", n.Bridge, errdefs.ErrUnavailable)
	}
	if err := checkBridge(n); err != nil {
		return err
	}
	if open := e.stacks[n.Profile]; open != nil {
		if open.network == n {
			return open.register(running)
		}
		delete(e.stacks, n.Profile)
		open.close()
	}
	s, err := e.openStack(ctx, n, running)
	if err != nil {
		return explain(fmt.Errorf("cannot open network %s: %w", n.Bridge, err))
	}
	e.stacks[n.Profile] = s
	return nil
}

// ResolvConf returns the file on the host that containers of a profile have at /etc/resolv.conf.
func (e *Egress) ResolvConf(profile string) string {
	return filepath.Join(e.cfg.Dir, "resolv-"+profile+".conf")
}

// Add registers what a container may reach before it exists, and gives it an address on its profile's network, which
// must be open. Remove gives the address back.
func (e *Egress) Add(spec dockerexec.Spec, holder uint64) (netip.Addr, error) {
	s, err := e.stack(spec.Egress.Profile)
	if err != nil {
		return netip.Addr{}, err
	}
	return s.add(spec, holder)
}

// Bind connects a container that has started, before anything of a tenant runs in it.
func (e *Egress) Bind(ep dockerexec.Endpoint) error {
	s, err := e.stack(ep.Spec.Egress.Profile)
	if err != nil {
		return err
	}
	return s.bind(ep)
}

// Assign has a container reach what another Spec says. It could reach nothing so far; what is open
// can by Bind alone.
func (e *Egress) Assign(holder uint64, from, to dockerexec.Spec) error {
	s, err := e.stack(from.Egress.Profile)
	if err != nil {
		return err
	}
	return s.assign(holder, from, to)
}

// Change has a container that runs reach what its endpoint's Spec says, instead of what it could so far. The error is
// errdefs.ErrFailedPrecondition if it was filtered and is to be open.
func (e *Egress) Change(ep dockerexec.Endpoint) error {
	s, err := e.stack(ep.Spec.Egress.Profile)
	if err != nil {
		return err
	}
	return s.change(ep)
}

// Remove cuts a container off at once and forgets it; one that has no address any more has lost nothing but that. Its address is not used again before nothing of its flows is left,
// about a millisecond later.
func (e *Egress) Remove(profile string, holder uint64) {
	if s, err := e.stack(profile); err == nil {
		s.remove(holder)
	}
}

func (e *Egress) stack(profile string) (*stack, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.stacks[profile]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("the network of profile %q is not open: %w", profile, errdefs.ErrUnavailable)
}

// Shutdown ends the servers. The rules stay: filtered containers are cut off, open ones are not.
func (e *Egress) Shutdown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, s := range e.stacks {
		s.close()
	}
	e.cancel()
	e.own.finder.Wait()
	e.routes.close()
	e.interfaces.close()
}

// Stats are the numbers of a network's servers.
type Stats struct {
	Containers  int   // that have an address
	Connections int64 // open through the guard
	Forwarded   uint64
}

// Stats returns the numbers of the networks that are open, by profile.
func (e *Egress) Stats() map[string]Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	stats := make(map[string]Stats, len(e.stacks))
	for profile, s := range e.stacks {
		numbers := Stats{Containers: s.endpoints.count(), Forwarded: s.dns.Forwarded()}
		if s.guard != nil {
			numbers.Connections = s.guard.Open()
		}
		stats[profile] = numbers
	}
	return stats
}

// Budgets returns what users' connections take of what the service has once, by the name of each budget.
func (e *Egress) Budgets() map[string]budget.Stats { return e.budget.Stats() }

func (e *Egress) admits(p Profile) policy.Addresses {
	own := func(addr netip.Addr) bool { return e.own.has(addr) || e.routes.own(addr) }
	return policy.Addresses{Private: p.Private, Own: own, Extra: e.cfg.AlsoPublic}
}

// explain adds what to do about the likely cause of an error.
func explain(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: the service needs CAP_NET_ADMIN, CAP_NET_BIND_SERVICE and the host's network namespace: %w", err, errdefs.ErrUnavailable)
	}
	return err
}
