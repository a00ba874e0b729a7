package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// guarded compares the guard with the direct way and with another proxy.
type guarded struct{ guard, direct, haproxy connections }

// connections has the measurements of one way to the origin.
type connections struct {
	streams sample // the times of downloads over TLS
	secure  sample // the times of a TCP connection and its TLS handshake
	// processor is what the process in the way ran for one connection, by rows. For the direct way
	// that is sandboxd, which only has the calls.
	processor sample
}

const (
	// handshakesBefore is how many connections a program makes before the first that is counted.
	handshakesBefore = 2
	// proxyNumber is the address of the test internet at which HAProxy listens.
	proxyNumber = 30

	// guardStreamTarget is how fast a stream must be, relative to the direct way, and
	// guardHandshakeTarget how much longer than there a connection may take.
	guardStreamTarget    = 0.9
	guardHandshakeTarget = 500 * time.Microsecond
)

// Two streams of one way differ by a third, so there are more of them, each of them shorter.

func guardRounds(cfg settings) int { return 8 * cfg.streams }

func guardStream(cfg settings) int64 { return cfg.streamBytes / 4 }

// route is how a program inside gets to the origin.
type route struct {
	domains []string   // of the call
	addr    netip.Addr // to connect to
	pid     int        // of the process in the way
	found   *connections
}

func (s *service) measureGuard(ctx context.Context, found *guarded) error {
	haproxy, err := s.startHAProxy(ctx)
	if err != nil {
		return err
	}
	defer haproxy.stop()
	if err := os.WriteFile(s.inHome("handshakes.py"), handshakesScript, 0o644); err != nil {
		return err
	}
	origin, sandboxd := s.world.Addr(originNumber), s.process.Process.Pid
	var streams, handshakes []way
	for _, r := range []route{
		{byName, origin, sandboxd, &found.guard},
		{anywhere, origin, sandboxd, &found.direct},
		{anywhere, haproxy.addr.Addr(), haproxy.pid(), &found.haproxy},
	} {
		streams = append(streams, once(&r.found.streams, func() (time.Duration, error) { return s.download(ctx, r) }))
		handshakes = append(handshakes, way{&r.found.secure, func() (sample, error) { return s.handshakes(ctx, r) }})
	}
	if err := byTurns(guardRounds(s.settings), 0, streams...); err != nil {
		return err
	}
	return byTurns(s.settings.handshakes/rowLength, 0, handshakes...)
}

// haproxySettings is a format for an address, a name and an origin.
const haproxySettings = `global
	maxconn 4096
defaults
	mode tcp
	option splice-auto
	timeout connect 10s
	timeout client 1m
	timeout server 1m
frontend tls
	bind %[1]s
	tcp-request inspect-delay 5s
	tcp-request content reject unless { req.ssl_hello_type 1 }
	tcp-request content reject unless { req.ssl_sni -i %[2]s }
	default_backend origin
backend origin
	server origin %[3]s:443
`

// startHAProxy starts a HAProxy that reads the name in a TLS greeting, connects to the origin and
// splices, as the guard does. It is in the test internet, where a program reaches it past the guard.
// So what it adds to a direct connection is what a proxy other than the guard would add.
func (l *lab) startHAProxy(ctx context.Context) (*peer, error) {
	addr := netip.AddrPortFrom(l.world.Addr(proxyNumber), 443)
	settings := filepath.Join(l.dir, "haproxy.cfg")
	if err := os.WriteFile(settings, fmt.Appendf(nil, haproxySettings, addr, originName, l.world.Addr(originNumber)), 0o600); err != nil {
		return nil, err
	}
	return l.startPeer(ctx, "haproxy", addr, "ip", "netns", "exec", worldName, "haproxy", "-db", "-f", settings)
}

// download returns how long curl inside takes to get a stream over one TLS connection, from the
// first byte on.
func (s *service) download(ctx context.Context, r route) (time.Duration, error) {
	bytes := guardStream(s.settings)
	out, err := s.reach(ctx, r.domains, "curl", "-sS", "--http1.1", "--resolve", fmt.Sprintf("%s:443:%s", originName, r.addr), "--cacert", "/home/"+caFile, "-o", "/dev/null",
		"-w", "%{size_download} %{time_starttransfer} %{time_total}", fmt.Sprintf("https://%s/bytes?n=%d", originName, bytes))
	if err != nil {
		return 0, err
	}
	var n int64
	var first, all float64 // seconds
	if _, err := fmt.Sscan(out.Stdout, &n, &first, &all); err != nil || n != bytes || all <= first {
		return 0, fmt.Errorf("curl printed %q for %d bytes", out.Stdout, bytes)
	}
	return time.Duration((all - first) * float64(time.Second)), nil
}

//go:embed handshakes.py
var handshakesScript []byte

// handshakes makes a row of connections.
func (s *service) handshakes(ctx context.Context, r route) (sample, error) {
	before, err := processorTime(r.pid)
	if err != nil {
		return nil, err
	}
	row, err := s.printed(ctx, outgoing(r.domains, "python3", "/home/handshakes.py", r.addr.String(), originName, "/home/"+caFile, fmt.Sprint(handshakesBefore), fmt.Sprint(rowLength)))
	if err != nil {
		return nil, err
	}
	if len(row) != rowLength {
		return nil, fmt.Errorf("%d times of connections were printed, not %d", len(row), rowLength)
	}
	after, err := processorTime(r.pid)
	r.found.processor = append(r.found.processor, (after-before)/(handshakesBefore+rowLength))
	return row, err
}

func guardSection(f findings) section {
	stream := guardStream(f.settings)
	s := section{
		title: "The guard",
		how: fmt.Sprintf("A stream is one download of %s by `curl` over HTTP/1.1 and TLS from an origin of the test internet, measured inside\n"+
			"from its first byte to its last. The ways take turns in rounds. The table has the medians; the ratio is the median\n"+
			"of the rounds' ratios. guard: a call that may reach the origin by name, so the service is in the way. direct: a call\n"+
			"of the same user that may reach everything, so the host forwards its packets. haproxy: the same as direct, but to a\n"+
			"HAProxy in the test internet that reads the name, connects to the origin and splices, as the guard does; it shows\n"+
			"what a proxy costs here. The origin, curl and the proxies share the machine's cores. A Python program inside makes\n"+
			"the connections to the origin's address, by TCP and TLS, in rows of ten for each way. Over direct is the median of\n"+
			"the rows' differences: each row's median less that of the direct row of the same turn. Processor is what sandboxd, or\n"+
			"HAProxy, runs for one connection, from its beginning to its end.", mib(stream)),
		head: timesHead("runtime", "way", "streams", "MB/s", "over direct", "processor"),
	}
	for _, r := range f.runtimes {
		g := r.guard
		over := apart(g.guard.secure, g.direct.secure)
		for _, way := range []struct {
			name            string
			found           connections
			over, processor time.Duration
		}{
			{"guard", g.guard, over, g.guard.processor.median() - g.direct.processor.median()},
			{"direct", g.direct, 0, 0},
			{"haproxy", g.haproxy, apart(g.haproxy.secure, g.direct.secure), g.haproxy.processor.median()},
		} {
			streams := way.found.streams
			s.times(way.found.secure, r.runtime, way.name, fmt.Sprint(len(streams)), megabytes(stream, streams.median()), millis(way.over), millis(way.processor))
		}
		s.judge(
			atLeast(r.runtime, "speed of a stream, guard ÷ direct", paired(g.direct.streams, g.guard.streams), guardStreamTarget, times),
			atMost(r.runtime, "p50 of TCP and TLS, guard − direct", over, guardHandshakeTarget, ms))
	}
	return s
}
