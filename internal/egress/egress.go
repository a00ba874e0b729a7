// Package egress limits containers to the names that they may reach. It knows which container has
// which address. For each network it runs the DNS filter, the guard in the gateway that filtered
// containers are connected to, and the rules for containers that may reach all of the internet.
//
// egress.go has the API; stack.go is one network; admission.go adds, changes and removes its
// containers; endpoints.go registers them; gatewaylink.go connects filtered ones to the gateway;
// relay.go carries connections that the guard does not inspect; refused.go reports what the gateway
// refused; subnets.go, interfaces.go, route.go, own.go and resolvers.go ask about the host;
// reports.go reports DNS questions.
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/rules"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/policy"
)

// Config is what the operator sets. Lists of addresses and ports may be empty.
type Config struct {
	// Name begins the names of the nftables tables: <Name>-isolated and <Name>-local.
	Name string
	// Dir is where the resolv.conf files of containers are kept, on Docker's host.
	Dir string
	// Profiles are the ways out, by name.
	Profiles map[string]Profile
	// GatewayProgram is the file of the service's own program, which gateways run too. GatewayDir
	// is a folder on Docker's host for what gateways share with the service.
	GatewayProgram, GatewayDir string
	// Subnets are the ranges that networks are taken from, the preferred one first.
	Subnets []netip.Prefix
	// SubnetBits is the prefix length of a network.
	SubnetBits int
	// AlsoPublic are ranges that count as public although they are not.
	AlsoPublic []netip.Prefix
	// Own are addresses of the host that none of its interfaces has. AskMetadata says to ask the
	// cloud for more of them.
	Own         []netip.Addr
	AskMetadata bool
	// ExtraPorts are the TCP ports besides 80 and 443 that filtered containers reach at allowed
	// names.
	ExtraPorts []uint16
	// QueriesPerSecond and MaxConnections bound one container.
	QueriesPerSecond, MaxConnections int
	// MaxUserConnections bounds the connections of all of a user's containers.
	MaxUserConnections int
	// AcceptUnfiltered accepts that there are no rules where the kernel or the service's rights allow
	// none: containers may be open then, but not filtered.
	AcceptUnfiltered bool
	// MayPass is called before each lookup and each connection; an error means that nothing new may
	// pass. It must not block. Nil means that everything may pass.
	MayPass func() error
	// Secrets are put into requests; nil for none. Roots returns who may have signed the certificates
	// of the origins that these go to; nil, and a pool that is nil, stand for those of the host.
	Secrets *Secrets
	Roots   func() *x509.CertPool
	// Decisions takes every verdict.
	Decisions *decisions.Log
	Log       zerolog.Logger
}

// Profile is one way out.
type Profile struct {
	// Private admits private networks besides the public internet.
	Private bool
	// Upstreams are resolvers in dnsfilter's form; if there are none, the host's own are used.
	Upstreams []string
}

// Egress controls the networks of one service. It is a networks.Filter, and is safe
// for concurrent use.
type Egress struct {
	cfg        Config
	budget     *budget.Connections
	unfiltered error // why there are no rules; nil where there are
	interfaces *interfaces
	routes     *routes
	own        *ownAddresses
	ctx        context.Context // ends with Shutdown
	cancel     context.CancelFunc

	mu     sync.Mutex
	stacks map[string]*stack
	closed bool
}

// New removes the rules of networks that are gone; a network gets its rules and servers from Open.
// If rules cannot be made here, the error says what to do.
func New(cfg Config) (*Egress, error) {
	unfiltered := Probe(cfg.Name)
	if unfiltered != nil && !cfg.AcceptUnfiltered {
		return nil, fmt.Errorf(
			"cannot limit containers to the names that they may reach: %w; or set docker.enableWeakerNestedSandbox, and calls may have only no network or all of it",
			unfiltered)
	}
	if unfiltered != nil {
		cfg.Log.Warn().Err(unfiltered).Msg(
			"no call can be filtered by name, only blocked or open; accepted by enableWeakerNestedSandbox")
	}
	shared, err := budget.NewConnections(cfg.MaxUserConnections)
	if err != nil {
		return nil, err
	}
	if unfiltered == nil {
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
	var source metadata
	if cfg.AskMetadata {
		source = metadata{server: MetadataServer, waits: metadataWaits}
	}
	return &Egress{
		cfg: cfg, budget: shared, unfiltered: unfiltered, interfaces: interfaces, routes: routes,
		own: newOwnAddresses(ctx, cfg.Own, source, cfg.Log),
		ctx: ctx, cancel: cancel, stacks: map[string]*stack{},
	}, nil
}

// Unfiltered returns why no container can be filtered, or nil.
func (e *Egress) Unfiltered() error { return e.unfiltered }

// Probe checks whether the kernel supports our rules, without making any. The error says what is
// missing.
func Probe(name string) error {
	table, err := rules.New(rules.Config{
		Table: name + "-probe", Questions: 1, Connections: 1,
		Bridges: []rules.Bridge{{
			Name: "probe", Gateway: netip.MustParseAddr("192.0.2.1"),
			Subnet:    netip.MustParsePrefix("192.0.2.0/24"),
			NonPublic: policy.Addresses{}.Excluded4(),
		}},
	})
	if err == nil {
		table.Close()
	}
	return err
}

// Subnets returns the subnets that a new network may have, the preferred one first. None overlaps
// an address or a route of the host, or another service's network.
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
	free := freeSubnets(e.cfg.Subnets, e.cfg.SubnetBits, taken)
	if len(free) == 0 {
		return nil, fmt.Errorf(
			"egress.subnets: all of %v is in use on this host, as far as a network of /%d goes: name another private range, or raise egress.subnetBits",
			e.cfg.Subnets, e.cfg.SubnetBits)
	}
	return free, nil
}

// Open makes a network ready. running are the containers on it; access of any others is closed. An
// open network is only checked, and learns of new containers, so Open may be called before each
// use. The error is errdefs.ErrFailedPrecondition if the bridge is missing or lacks its address: it
// has to be recreated.
func (e *Egress) Open(ctx context.Context, n networks.Network,
	running []networks.Endpoint) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("cannot open network %s: the service is shutting down: %w", n.Bridge,
			errdefs.ErrUnavailable)
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

// ResolvConf returns the host's file that containers of a profile have mounted at /etc/resolv.conf.
func (e *Egress) ResolvConf(profile string) string {
	return filepath.Join(e.cfg.Dir, "resolv-"+profile+".conf")
}

// Link returns how a runtime connects a container to the gateway of a network that is open; empty
// if there is none.
func (e *Egress) Link(n networks.Network, addr netip.Addr, mac net.HardwareAddr) string {
	s, err := e.stack(n.Profile)
	if err != nil || s.gateway == nil {
		return ""
	}
	return s.gateway.link(n, addr, mac)
}

// Add registers what a container may reach before it exists, and gives it an address on its
// profile's network, which must be open. Remove gives the address back.
func (e *Egress) Add(party networks.Party, holder uint64) (netip.Addr, error) {
	s, err := e.stack(party.Egress.Profile)
	if err != nil {
		return netip.Addr{}, err
	}
	return s.add(party, holder)
}

// Bind connects a container that has started. It comes before anything of a tenant runs in the
// container.
func (e *Egress) Bind(ep networks.Endpoint) error {
	s, err := e.stack(ep.Egress.Profile)
	if err != nil {
		return err
	}
	return s.bind(ep)
}

// Assign lets a container reach what another Party may. So far it could reach nothing: it was
// filtered without names, or is open and not bound yet.
func (e *Egress) Assign(holder uint64, from, to networks.Party) error {
	s, err := e.stack(from.Egress.Profile)
	if err != nil {
		return err
	}
	return s.assign(holder, from, to)
}

// Change lets a running container reach what its endpoint says, instead of what it could
// reach so far. The error is errdefs.ErrFailedPrecondition if it was filtered and is to be open.
func (e *Egress) Change(ep networks.Endpoint) error {
	s, err := e.stack(ep.Egress.Profile)
	if err != nil {
		return err
	}
	return s.change(ep)
}

// Remove cuts a container off at once and forgets it; it does nothing if the container has no
// address any more. The address is not used again before all of its flows are gone, about a
// millisecond later.
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
	return nil, fmt.Errorf("the network of profile %q is not open: %w", profile,
		errdefs.ErrUnavailable)
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

// Budgets returns how much users' connections take of each budget that the whole service shares, by
// the budget's name.
func (e *Egress) Budgets() map[string]fair.Stats { return e.budget.Stats() }

func (e *Egress) admits(p Profile) policy.Addresses {
	own := func(addr netip.Addr) bool { return e.own.has(addr) || e.routes.own(addr) }
	return policy.Addresses{Private: p.Private, Own: own, Extra: e.cfg.AlsoPublic}
}

// explain adds what to do about the likely cause of an error.
func explain(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf(
			"%w: the service needs CAP_NET_ADMIN, CAP_NET_BIND_SERVICE and the host's network namespace: %w",
			err, errdefs.ErrUnavailable)
	}
	return err
}
