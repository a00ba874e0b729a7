package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// dnsFindings has how many questions DNS servers answer per second of their processor time.
type dnsFindings struct {
	// dnsmasq and filter answer the same questions from their caches; denied asks for names that
	// the filter's client may not have.
	dnsmasq, filter, denied dnsRates
	// one is the filter with one client that may have one name; crowd has a thousand clients, and
	// list a thousand names.
	one, crowd, list dnsRates
	// dnsmasqHalf and filterHalf are latencies at half of the rate that each can do; nothingHalf is
	// that of a server that does nothing, at half of the filter's rate.
	dnsmasqHalf, filterHalf, nothingHalf dnsLatencies
}

// dnsLatencies has the percentiles of the latency of each round.
type dnsLatencies struct{ p50, p99 sample }

// dnsRates has the rates of the rounds.
type dnsRates struct{ perSecond, perCPU speeds }

func (r *dnsRates) add(l load, err error) error {
	if err == nil {
		r.perSecond, r.perCPU = append(r.perSecond, l.perSecond), append(r.perCPU, l.perCPU)
	}
	return err
}

const (
	// dnsNames is how many names there are, and how many a long list has; dnsCrowd is how many
	// clients.
	dnsNames, dnsCrowd = 1000, 1000
	// dnsTTL is longer than a run.
	dnsTTL = 12 * time.Hour
)

var (
	// Addresses of the loopback interface, which need no setting up.
	dnsFilterAddr, dnsmasqAddr = netip.MustParseAddr("127.77.0.1"), netip.MustParseAddr("127.77.0.2")
	dnsAsker                   = netip.MustParseAddr("127.77.1.1")
)

// dnsWay is a load: a server and the questions that it is asked.
type dnsWay struct {
	name   string
	server dnsServer
	asked  questions
	into   func(*dnsFindings) *dnsRates
}

// measureDNS loads the servers by turns; each round begins with another server.
func (l *lab) measureDNS(ctx context.Context) (found dnsFindings, err error) {
	servers := &dnsServers{}
	defer func() { err = errors.Join(err, servers.stop()) }()
	ways, err := l.dnsWays(ctx, servers)
	if err != nil {
		return found, err
	}
	nothing := dnsWay{name: "a server that does nothing", asked: ways[1].asked}
	if nothing.server, err = servers.start(ctx, helpReflect, netip.AddrPortFrom(dnsFilterAddr, 0)); err != nil {
		return found, err
	}
	for _, way := range ways { // fills the caches
		if _, err := l.ask(ctx, way.server, way.asked, 1, 0); err != nil {
			return found, fmt.Errorf("%s: %w", way.name, err)
		}
	}
	before := len(l.world.DNS.Questions())
	for round := range l.settings.dnsRounds {
		for i := range ways {
			way := ways[(round+i)%len(ways)]
			if err := way.into(&found).add(l.ask(ctx, way.server, way.asked, l.settings.dnsSeconds, 0)); err != nil {
				return found, fmt.Errorf("%s: %w", way.name, err)
			}
		}
		l.say("DNS questions, round %d of %d: %.0f per second of processor time, dnsmasq %.0f", round+1, l.settings.dnsRounds, found.filter.perCPU[round], found.dnsmasq.perCPU[round])
	}
	for range l.settings.dnsRounds {
		if err := l.halfLoad(ctx, ways[0], found.dnsmasq, &found.dnsmasqHalf); err != nil {
			return found, err
		}
		if err := l.halfLoad(ctx, ways[1], found.filter, &found.filterHalf); err != nil {
			return found, err
		}
		if err := l.halfLoad(ctx, nothing, found.filter, &found.nothingHalf); err != nil {
			return found, err
		}
	}
	if after := len(l.world.DNS.Questions()); after != before {
		return found, fmt.Errorf("%d questions were not answered from a cache", after-before)
	}
	return found, nil
}

// halfLoad asks at half of the rate that a server can reach.
func (l *lab) halfLoad(ctx context.Context, way dnsWay, rates dnsRates, into *dnsLatencies) error {
	half, err := l.ask(ctx, way.server, way.asked, l.settings.dnsSeconds, rates.perSecond.median()/2)
	if err != nil {
		return err
	}
	if len(half.latency) == 0 {
		return errors.New("dnsperf has printed no latencies")
	}
	into.p50, into.p99 = append(into.p50, half.latency.median()), append(into.p99, half.latency.percentile(99))
	return nil
}

// dnsWays starts all servers. The first two ways are dnsmasq's and the filter's.
func (l *lab) dnsWays(ctx context.Context, servers *dnsServers) ([]dnsWay, error) {
	var names, others []string
	for i := range dnsNames {
		name := fmt.Sprintf("host%04d.bench.example", i)
		l.world.DNS.SetA(name, dnsTTL, l.world.Addr(10))
		names, others = append(names, name), append(others, fmt.Sprintf("host%04d.elsewhere.example", i))
	}
	var files [3]questions
	for i, f := range []struct {
		name, code string
		names      []string
	}{{"allowed", "NOERROR", names}, {"denied", "NXDOMAIN", others}, {"one", "NOERROR", names[:1]}} {
		var err error
		if files[i], err = writeQuestions(filepath.Join(l.dir, f.name), f.code, f.names); err != nil {
			return nil, err
		}
	}
	allowed, denied, one := files[0], files[1], files[2]
	dnsmasq, err := servers.dnsmasq(ctx, l)
	if err != nil {
		return nil, err
	}
	var filters [3]dnsServer
	for i, plan := range []filterPlan{{Clients: 1, Names: names[:1]}, {Clients: dnsCrowd, Names: names[:1]}, {Clients: 1, Names: names}} {
		plan.Listen, plan.Asker = netip.AddrPortFrom(dnsFilterAddr, 0).String(), dnsAsker
		plan.Upstream, plan.Public = l.world.DNSServers()[0].String(), worldPublic
		if filters[i], err = servers.start(ctx, helpDNS, plan); err != nil {
			return nil, err
		}
	}
	single, crowd, list := filters[0], filters[1], filters[2]
	return []dnsWay{
		{"dnsmasq", dnsmasq, allowed, func(f *dnsFindings) *dnsRates { return &f.dnsmasq }},
		{"the filter", list, allowed, func(f *dnsFindings) *dnsRates { return &f.filter }},
		{"the filter, denied", list, denied, func(f *dnsFindings) *dnsRates { return &f.denied }},
		{"the filter, one name", single, one, func(f *dnsFindings) *dnsRates { return &f.one }},
		{"the filter, many clients", crowd, one, func(f *dnsFindings) *dnsRates { return &f.crowd }},
		{"the filter, many names", list, one, func(f *dnsFindings) *dnsRates { return &f.list }},
	}, nil
}

// dnsServers are the running servers.
type dnsServers struct {
	helpers []*helper
	other   *exec.Cmd
}

// start starts a helper that is a server.
func (s *dnsServers) start(ctx context.Context, kind string, plan any) (dnsServer, error) {
	h, err := startHelper(ctx, kind, plan, 0)
	if err != nil {
		return dnsServer{}, err
	}
	var addr netip.AddrPort
	if err := h.next(&addr); err != nil {
		return dnsServer{}, err
	}
	s.helpers = append(s.helpers, h)
	return dnsServer{addr, h.process.Process.Pid}, nil
}

// dnsmasq starts dnsmasq for DNS alone, with a cache that holds all names.
func (s *dnsServers) dnsmasq(ctx context.Context, l *lab) (dnsServer, error) {
	addr, err := freePort(ctx, dnsmasqAddr)
	if err != nil {
		return dnsServer{}, err
	}
	log := filepath.Join(l.dir, "dnsmasq.log")
	s.other = exec.CommandContext(ctx, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root", "--log-facility="+log,
		"--no-resolv", "--no-hosts", "--server="+l.world.DNSServers()[0].String(), "--cache-size=10000", "--dns-forward-max=1000",
		"--bind-interfaces", "--listen-address="+addr.Addr().String(), fmt.Sprintf("--port=%d", addr.Port()))
	s.other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.other.Start(); err != nil {
		s.other = nil
		return dnsServer{}, fmt.Errorf("cannot start dnsmasq: %w", err)
	}
	for range 100 {
		if conn, err := net.Dial("tcp", addr.String()); err == nil {
			return dnsServer{addr, s.other.Process.Pid}, conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return dnsServer{}, fmt.Errorf("dnsmasq does not listen at %s", addr)
}

// freePort returns a port that is free for TCP; nothing else uses UDP at such an address.
func freePort(ctx context.Context, addr netip.Addr) (netip.AddrPort, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return netip.AddrPort{}, err
	}
	return listener.Addr().(*net.TCPAddr).AddrPort(), listener.Close()
}

func (s *dnsServers) stop() error {
	var faults []error
	for _, h := range s.helpers {
		faults = append(faults, h.stop())
	}
	if s.other != nil {
		_ = s.other.Process.Kill()
		_ = s.other.Wait()
	}
	return errors.Join(faults...)
}
