package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/policy"
)

// keyed compares requests that get a credential with others.
type keyed struct {
	credential, guard, direct, mitmproxy keyedWay
	// before and idle are the service's memory without, and with idleConnections.
	before, idle int64
}

// keyedWay has the measurements of one way to the origin: requests on a kept connection, new
// connections, and downloads.
type keyedWay struct {
	http1, http2, connections, streams sample
}

const (
	credentialName = "bench"
	// mitmNumber is the address of the test internet at which mitmproxy listens.
	mitmNumber      = 31
	idleConnections = 1000

	keptTarget       = 500 * time.Microsecond
	connectionTarget = 2 * time.Millisecond
	keyedStream      = 0.5
	idleTarget       = 40 << 20
)

// keyedRoute is how a program inside gets to the origin.
type keyedRoute struct {
	into *keyedWay
	addr netip.Addr
	ca   string // a file inside, instead of what programs trust there
	call types.Exec
}

// credentialSettings are those of a service whose containers trust the test internet's authority.
func (l *lab) credentialSettings() []string {
	if l.world == nil {
		return nil
	}
	return append(l.worldSettings(), "SANDBOXD_EGRESS_CA_FILE="+filepath.Join(l.dir, caFile))
}

func (s *service) measureCredentials(ctx context.Context) (found keyed, err error) {
	value := "the-value-of-the-benchmarks"
	if _, err = s.api.PutCredential(ctx, credentialName, types.PutCredential{CredentialTerms: types.CredentialTerms{
		Hosts: []string{originName}, CredentialPlace: types.CredentialPlace{Header: "Authorization", Template: "Bearer {secret}"},
	}, Value: &value}); err != nil {
		return found, err
	}
	holder := travelling(boxID)
	holder.Permissions.Secrets = []string{credentialName}
	if _, err = s.api.Put(ctx, boxID, holder); err != nil {
		return found, err
	}
	mitm, ca, err := s.startMitmproxy(ctx, value)
	if err != nil {
		return found, err
	}
	defer mitm.stop()
	if err = errors.Join(os.WriteFile(s.inHome("mitm.pem"), ca, 0o644), os.WriteFile(s.inHome("handshakes.py"), handshakesScript, 0o644),
		os.WriteFile(s.inHome("idle.py"), idleScript, 0o644)); err != nil {
		return found, err
	}
	origin := s.world.Addr(originNumber)
	with := outgoing(byName)
	with.Permissions = append(with.Permissions, policy.TagSecret+credentialName)
	routes := []keyedRoute{
		{&found.credential, origin, "", with}, {&found.guard, origin, "", outgoing(byName)},
		{&found.direct, origin, "", outgoing(anywhere)}, {&found.mitmproxy, mitm.addr.Addr(), "/home/mitm.pem", outgoing(anywhere)},
	}
	var kept, connections, streams []way
	for _, r := range routes {
		kept = append(kept, way{&r.into.http1, func() (sample, error) { return s.kept(ctx, r, "--http1.1") }},
			way{&r.into.http2, func() (sample, error) { return s.kept(ctx, r, "--http2") }})
		connections = append(connections, way{&r.into.connections, func() (sample, error) { return s.connections(ctx, r) }})
		streams = append(streams, once(&r.into.streams, func() (time.Duration, error) { return s.keyedDownload(ctx, r) }))
	}
	turns := s.settings.handshakes / rowLength
	if err = errors.Join(byTurns(turns, 1, kept...), byTurns(turns, 1, connections...), byTurns(s.settings.streams, 0, streams...)); err != nil {
		return found, err
	}
	found.before, found.idle, err = s.idleMemory(ctx, with)
	return found, err
}

// curl runs curl inside by a route, and returns what it prints of each transfer.
func (s *service) curl(ctx context.Context, r keyedRoute, args ...string) ([]float64, error) {
	e := r.call
	e.Argv = append([]string{"curl", "-sS", "--fail", "--resolve", fmt.Sprintf("%s:443:%s", originName, r.addr), "-o", "/dev/null"}, args...)
	if r.ca != "" {
		e.Argv = append(e.Argv, "--cacert", r.ca)
	}
	out, err := s.call(ctx, boxID, e)
	if err != nil {
		return nil, err
	}
	var numbers []float64
	for _, field := range strings.Fields(out.Stdout) {
		var number float64
		if _, err := fmt.Sscan(field, &number); err != nil {
			return nil, fmt.Errorf("curl printed %q", out.Stdout)
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

// keptBefore is how many requests of a connection come before the first that is counted.
const keptBefore = 5

// kept makes requests one after the other on one connection.
func (s *service) kept(ctx context.Context, r keyedRoute, protocol string) (row sample, err error) {
	seconds, err := s.curl(ctx, r, protocol, "-w", "%{time_total}\n", fmt.Sprintf("https://%s/hello?[1-%d]", originName, keptBefore+rowLength))
	if err == nil && len(seconds) != keptBefore+rowLength {
		err = fmt.Errorf("curl printed %d times", len(seconds))
	}
	if err != nil {
		return nil, err
	}
	for _, one := range seconds[keptBefore:] {
		row = append(row, time.Duration(one*float64(time.Second)))
	}
	return row, nil
}

// keyedDownload is download by a route of these.
func (s *service) keyedDownload(ctx context.Context, r keyedRoute) (time.Duration, error) {
	numbers, err := s.curl(ctx, r, "--http1.1", "-w", "%{time_starttransfer} %{time_total}", fmt.Sprintf("https://%s/bytes?n=%d", originName, guardStream(s.settings)))
	if err == nil && (len(numbers) != 2 || numbers[1] <= numbers[0]) {
		err = fmt.Errorf("curl printed %v", numbers)
	}
	if err != nil {
		return 0, err
	}
	return time.Duration((numbers[1] - numbers[0]) * float64(time.Second)), nil
}

// connections makes a row of connections.
func (s *service) connections(ctx context.Context, r keyedRoute) (sample, error) {
	e := r.call
	e.Argv = []string{"python3", "/home/handshakes.py", r.addr.String(), originName, r.ca, fmt.Sprint(handshakesBefore), fmt.Sprint(rowLength)}
	return s.printed(ctx, e)
}

//go:embed idle.py
var idleScript []byte

// idleMemory returns the service's memory without, and with many connections that have had a request
// each and wait for the next.
func (s *service) idleMemory(ctx context.Context, e types.Exec) (before, with int64, err error) {
	file := fmt.Sprintf("/proc/%d/smaps_rollup", s.process.Process.Pid)
	if before, err = procBytes(file, "Pss"); err != nil {
		return 0, 0, err
	}
	e.Argv = []string{"python3", "/home/idle.py", originName, fmt.Sprint(idleConnections)}
	ended := make(chan error, 1)
	go func() { _, err := s.call(ctx, boxID, e); ended <- err }()
	for {
		select {
		case err := <-ended:
			return before, with, err
		case <-time.After(200 * time.Millisecond):
			if with, err = procBytes(file, "Pss"); err != nil {
				return 0, 0, err
			}
		}
	}
}

// startMitmproxy starts a mitmproxy that sets the same header, in the test internet, and returns its
// authority.
func (s *service) startMitmproxy(ctx context.Context, value string) (*peer, []byte, error) {
	dir, origin := filepath.Join(s.lab.dir, "mitmproxy"), s.world.Addr(originNumber)
	addr := netip.AddrPortFrom(s.world.Addr(mitmNumber), 443)
	p, err := s.lab.startPeer(ctx, "mitmproxy", addr, "ip", "netns", "exec", worldName, "mitmdump", "-q", "--ssl-insecure", "--set", "confdir="+dir,
		"--set", "keep_host_header=true", "--set", "connection_strategy=lazy", "--mode", "reverse:https://"+origin.String(),
		"--listen-host", addr.Addr().String(), "--listen-port", "443", "--modify-headers", "/~q/Authorization/Bearer "+value)
	if err != nil {
		return nil, nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "mitmproxy-ca-cert.pem"))
	if err != nil {
		p.stop()
	}
	return p, ca, err
}

func credentialsSection(f findings) section {
	s := section{
		title: "Credentials",
		how: fmt.Sprintf("Requests of `curl` on a kept connection to an origin of the test internet, by HTTP/1.1 and HTTP/2, new connections\n"+
			"(TCP and TLS, by a Python program), and downloads of %s. credential: a call whose requests get a credential, so that\n"+
			"the guard ends TLS and goes on with TLS to the origin. guard: a call without it, whose connections the guard passes on\n"+
			"unread. direct: a call of the same user that may reach everything. mitmproxy: the same as direct, but to a mitmproxy\n"+
			"in the test internet that sets the same header. All share the machine's cores. Idle: what the service's memory is\n"+
			"larger by while %d connections wait that have had a request with the credential.", mib(guardStream(f.settings)), idleConnections),
		head: timesHead("runtime", "way", "what"),
	}
	for _, r := range f.runtimes {
		k := r.credentials
		for _, one := range []struct {
			name string
			way  keyedWay
		}{{"credential", k.credential}, {"guard", k.guard}, {"direct", k.direct}, {"mitmproxy", k.mitmproxy}} {
			s.times(one.way.http1, r.runtime, one.name, "a request, HTTP/1.1")
			s.times(one.way.http2, r.runtime, one.name, "a request, HTTP/2")
			s.times(one.way.connections, r.runtime, one.name, "a connection")
			s.times(one.way.streams, r.runtime, one.name, "a download")
		}
		s.judge(
			atMost(r.runtime, "p50 of a request by HTTP/1.1, credential − direct", apart(k.credential.http1, k.direct.http1), keptTarget, ms),
			atMost(r.runtime, "p50 of a request by HTTP/2, credential − direct", apart(k.credential.http2, k.direct.http2), keptTarget, ms),
			atMost(r.runtime, "p50 of a connection, credential − guard", apart(k.credential.connections, k.guard.connections), connectionTarget, ms),
			atLeast(r.runtime, "speed of a download, credential ÷ guard", paired(k.guard.streams, k.credential.streams), keyedStream, times),
			atMost(r.runtime, fmt.Sprintf("memory of %d idle connections", idleConnections), k.idle-k.before, int64(idleTarget), mib))
	}
	return s
}
