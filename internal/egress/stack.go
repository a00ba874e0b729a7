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

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/egress/guard"
	"github.com/daycare-run/sandbox/internal/egress/rules"
	"github.com/daycare-run/sandbox/internal/policy"
)

// checkEvery is how often the rules are compared with the kernel's when nothing says that they
// changed.
const checkEvery = 30 * time.Second

// closeLimit bounds how long a stack's servers may take to end.
const closeLimit = 5 * time.Second

// stack is one network's rules and servers.
type stack struct {
	owner     *Egress
	network   networks.Network
	admits    policy.Addresses
	endpoints endpoints
	table     table
	gateway   *gatewayLink // nil where nothing can be filtered
	dns       *dnsfilter.Server
	guard     *guard.Guard // nil where there is no gateway whose connections it could take

	changing sync.Mutex // held while what a container may reach is changed, or revoked

	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	closed  bool // nothing more is added to work
	pending int  // work's goroutines that background started
}

// table is what a stack needs of rules.Table, for containers that may reach all of the internet.
type table interface {
	Add(netip.Addr) error
	Bind(rules.Binding) error
	Remove(netip.Addr) error
	Forget(netip.Addr) error
	Exclude([]netip.Prefix) error
	Keep(ctx context.Context, interval time.Duration) error
	Close()
}

// none implements table where there can be no rules.
type none struct{}

func (none) Add(netip.Addr) error                            { return nil }
func (none) Bind(rules.Binding) error                        { return nil }
func (none) Remove(netip.Addr) error                         { return nil }
func (none) Forget(netip.Addr) error                         { return nil }
func (none) Exclude([]netip.Prefix) error                    { return nil }
func (none) Keep(ctx context.Context, _ time.Duration) error { <-ctx.Done(); return ctx.Err() }
func (none) Close()                                          {}

// openStack closes access before it opens any: the rules are in place before anything listens.
func (e *Egress) openStack(ctx context.Context, n networks.Network,
	running []networks.Endpoint) (_ *stack, err error) {
	profile, known := e.cfg.Profiles[n.Profile]
	if !known {
		return nil, fmt.Errorf("there is no profile %q", n.Profile)
	}
	upstreams, err := profile.upstreams()
	if err != nil {
		return nil, err
	}
	s := &stack{owner: e, network: n, admits: e.admits(profile), table: none{}}
	s.endpoints.init(n)
	s.endpoints.mayPass = e.cfg.MayPass
	life, stop := context.WithCancel(e.ctx)
	s.stop = stop
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.setRules(ctx, running); err != nil {
		return nil, err
	}
	if err := s.startDNS(ctx, upstreams); err != nil {
		return nil, err
	}
	if err := writeResolvConf(e.ResolvConf(n.Profile), n.Gateway); err != nil {
		return nil, err
	}
	if err := s.startGuard(life); err != nil {
		return nil, err
	}
	s.work.Go(func() { s.keep(life) })
	s.work.Go(func() { s.excludeOwn(life) })
	s.startRelays(life)
	s.startRefused(life)
	e.cfg.Log.Info().Str("network", n.Bridge).Stringer("subnet", n.Subnet).
		Strs("upstreams", upstreams).Int("containers", len(running)).Msg("network open")
	return s, nil
}

// setRules sets the rules and the gateway's attachments to those of the running containers, and of
// no others.
func (s *stack) setRules(ctx context.Context, running []networks.Endpoint) error {
	if s.owner.unfiltered != nil {
		s.restore(running)
		return nil
	}
	table, err := s.openTable()
	if err != nil {
		return err
	}
	s.table = table // which close closes
	if s.gateway, err = s.owner.openGateway(ctx, s.network); err != nil {
		return err
	}
	state, attached := s.restore(running)
	if err := table.Apply(ctx, state); err != nil {
		return err
	}
	if err := table.ForgetStrangers(); err != nil {
		return err
	}
	return s.gateway.Restart(attached)
}

// startDNS starts the DNS filter, at the bridge's gateway address for open containers and in the
// gateway for filtered ones.
func (s *stack) startDNS(ctx context.Context, upstreams []string) (err error) {
	cfg, n := &s.owner.cfg, s.network
	bound, err := dnsfilter.Listen(ctx, netip.AddrPortFrom(n.Gateway, dnsPort))
	if err != nil {
		return err
	}
	s.dns, err = dnsfilter.New(dnsfilter.Config{
		Sockets:          append(s.gateway.dnsSockets(), bound),
		Upstreams:        upstreams,
		Admits:           s.admits.Admits,
		Client:           s.endpoints.dnsEndpoint,
		HostName:         networks.HostName,
		QueriesPerSecond: cfg.QueriesPerSecond,
		Decided:          s.owner.reportQuestion,
		Log:              cfg.Log.With().Str("profile", n.Profile).Logger(),
	})
	if err != nil {
		bound.Close()
		return err
	}
	return s.dns.Start(ctx)
}

// openTable connects to the kernel's rules.
func (s *stack) openTable() (*rules.Table, error) {
	e, n := s.owner, s.network
	own, _ := e.own.prefixes()
	return rules.New(rules.Config{
		Table: e.cfg.Name + "-" + n.Profile,
		Bridges: []rules.Bridge{{
			Name: n.Bridge, Gateway: n.Gateway, Subnet: n.Subnet,
			NonPublic: append(s.admits.Excluded4(), own...),
		}},
		Questions: gatewayQuestions * e.cfg.QueriesPerSecond, Connections: e.cfg.MaxConnections,
		ClosedPorts: e.cfg.closedPorts(), Log: e.cfg.Log,
	})
}

// mailPort is where servers hand mail to each other: mail sent there from a host is held against
// that host.
const mailPort = 25

// closedPorts returns the ports that cannot be reached unless the operator has named them.
func (c Config) closedPorts() []uint16 {
	if slices.Contains(c.ExtraPorts, mailPort) {
		return nil
	}
	return []uint16{mailPort}
}

// startGuard serves the connections that come to the gateway.
func (s *stack) startGuard(life context.Context) error {
	if s.gateway == nil {
		return nil
	}
	limits := guard.DefaultLimits()
	limits.Connections = s.owner.cfg.MaxConnections
	cfg := guard.Config{
		TLS: s.gateway.TLS, HTTP: s.gateway.HTTP, Roots: s.owner.cfg.Roots,
		Network: guarded{s, life}, Limits: limits, Budget: s.owner.budget, Logger: s.owner.cfg.Log,
	}
	if s.owner.cfg.Secrets != nil {
		cfg.Secrets = s.owner.cfg.Secrets
	}
	opened, err := guard.New(cfg)
	if err != nil {
		return err
	}
	s.guard = opened
	return s.guard.Start(life)
}

const dnsPort = 53

// keep keeps the kernel's rules as they should be until the stack closes.
func (s *stack) keep(life context.Context) {
	for life.Err() == nil {
		err := s.table.Keep(life, checkEvery)
		if life.Err() != nil {
			return
		}
		s.owner.cfg.Log.Error().Err(err).Str("network", s.network.Bridge).
			Msg("cannot watch the rules; trying again")
		pause(life, 10*time.Millisecond)
	}
}

// excludeOwn keeps open containers from addresses of the host that become known while the network
// is open. The filter and the guard look them up themselves.
func (s *stack) excludeOwn(life context.Context) {
	for life.Err() == nil {
		prefixes, more := s.owner.own.prefixes()
		if err := s.table.Exclude(prefixes); err != nil {
			s.owner.cfg.Log.Error().Err(err).Str("network", s.network.Bridge).
				Msg("open containers may reach an address of this host; trying again")
			pause(life, time.Second)
			continue
		}
		select {
		case <-life.Done():
		case <-more:
		}
	}
}

// close ends the servers and leaves the rules.
func (s *stack) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	s.stop()
	var err error
	if s.dns != nil {
		err = s.dns.Shutdown(ctx)
	}
	if s.guard != nil {
		err = errors.Join(err, s.guard.Shutdown(ctx))
	}
	if err != nil {
		s.owner.cfg.Log.Warn().Err(err).Str("network", s.network.Bridge).
			Msg("a server of the network did not end in time")
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
	s.table.Close()
	s.gateway.close()
}

// backgroundLimit is how many removed containers of a network may wait at once for their flows to be
// forgotten.
const backgroundLimit = 16

// background runs do in a goroutine that close waits for, or itself if the stack has closed or too
// much is pending.
func (s *stack) background(do func()) {
	s.mu.Lock()
	if s.closed || s.pending == backgroundLimit {
		s.mu.Unlock()
		do()
		return
	}
	defer s.mu.Unlock()
	s.pending++
	s.work.Go(func() {
		do()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pending--
	})
}

// writeResolvConf replaces the file's content in place: containers have the file mounted.
func writeResolvConf(file string, gateway netip.Addr) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("cannot make the folder of resolv.conf: %w", err)
	}
	if err := os.WriteFile(file,
		fmt.Appendf(nil, "nameserver %s\noptions timeout:5 attempts:2\n", gateway),
		0o644); err != nil {
		return fmt.Errorf("cannot write resolv.conf: %w", err)
	}
	return nil
}
