package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// guarded compares the guard with the direct way and with another proxy.
type guarded struct {
	guard, direct, proxy connections
	// idle and sockets are how many connections a program had open, and how many more sockets
	// sandboxd had then; before and during are its resident memory, in bytes.
	idle, sockets  int
	before, during int64
}

// connections has the measurements of one way.
type connections struct {
	streams speeds // of downloads over TLS
	// connect is the time of a TCP connection, secure that of the connection and the TLS handshake.
	connect, secure sample
	// busy is the processor time of the process in the way while the connections are made. For the
	// direct way it is that of sandboxd, which only has the calls.
	busy time.Duration
}

// each returns the processor time of one connection.
func (c connections) each() time.Duration {
	// Each row has some connections that are not counted.
	made := len(c.secure) / rowLength * (rowLength + handshakesBefore)
	return c.busy / time.Duration(max(made, 1))
}

// way is how a program inside gets to the origin.
type way struct {
	domains []string
	addr    netip.Addr // to connect to
	process int        // whose processor time is counted
	found   *connections
}

// measureConnections measures streams and then handshakes; the ways take turns.
func (s *service) measureConnections(ctx context.Context, found *guarded) (err error) {
	p, err := s.startProxy(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	origin := s.world.Addr(originNumber)
	sandboxd := s.process.Process.Pid
	ways := []way{
		{byName, origin, sandboxd, &found.guard},
		{anywhere, origin, sandboxd, &found.direct},
		{anywhere, p.addr, p.process.Process.Pid, &found.proxy},
	}
	if err := s.measureGuardStreams(ctx, ways); err != nil {
		return err
	}
	return s.measureHandshakes(ctx, ways)
}

// Two streams of one way differ by a third, so there are more of them, each of them shorter.

func guardRounds(cfg settings) int { return 8 * cfg.streams }

func guardStream(cfg settings) int64 { return cfg.streamBytes / 4 }

// measureGuardStreams measures the ways by turns; each round begins with another one.
func (s *service) measureGuardStreams(ctx context.Context, ways []way) error {
	rounds := guardRounds(s.settings)
	for round := range rounds {
		for i := range ways {
			way := ways[(round+i)%len(ways)]
			speed, err := s.download(ctx, way, guardStream(s.settings))
			if err != nil {
				return err
			}
			way.found.streams = append(way.found.streams, speed)
		}
		s.say("%s: a stream over TLS, round %d of %d: %s MB/s, past the guard %s MB/s, by haproxy %s MB/s", s.runtime, round+1, rounds,
			megabytes(ways[0].found.streams[round]), megabytes(ways[1].found.streams[round]), megabytes(ways[2].found.streams[round]))
	}
	return nil
}

// download returns the speed at which curl inside gets bytes over one TLS connection, from the
// first byte on.
func (s *service) download(ctx context.Context, way way, bytes int64) (float64, error) {
	out, err := s.reach(ctx, way.domains, "curl", "-sS", "--http1.1", "--resolve", fmt.Sprintf("%s:443:%s", originName, way.addr), "--cacert", "/home/"+caFile, "-o", "/dev/null",
		"-w", "%{size_download} %{time_starttransfer} %{time_total}", fmt.Sprintf("https://%s/bytes?n=%d", originName, bytes))
	if err != nil {
		return 0, err
	}
	var n int64
	var first, all float64
	if _, err := fmt.Sscan(out.Stdout, &n, &first, &all); err != nil || n != bytes || all <= first {
		return 0, fmt.Errorf("curl printed %q for %d bytes", out.Stdout, bytes)
	}
	return float64(n) / (all - first), nil
}

// handshakesBefore is how many connections a program makes before the first that is counted.
const handshakesBefore = 2

//go:embed handshakes.py
var handshakesScript []byte

// measureHandshakes measures the ways by turns, in rows of one call each.
func (s *service) measureHandshakes(ctx context.Context, ways []way) error {
	if err := os.WriteFile(s.inHome("handshakes.py"), handshakesScript, 0o644); err != nil {
		return err
	}
	for turn := 0; len(ways[0].found.secure) < s.settings.handshakes; turn++ {
		for i := range ways {
			way := ways[(turn+i)%len(ways)]
			before, err := threadTime(way.process)
			if err != nil {
				return err
			}
			out, err := s.reach(ctx, way.domains, "python3", "/home/handshakes.py", way.addr.String(), originName, "/home/"+caFile, fmt.Sprint(handshakesBefore), fmt.Sprint(rowLength))
			if err != nil {
				return err
			}
			after, err := threadTime(way.process)
			if err != nil {
				return err
			}
			way.found.busy += after - before
			if err := readHandshakes(out, &way.found.connect, &way.found.secure); err != nil {
				return err
			}
		}
	}
	return nil
}

// readHandshakes reads the two times of each connection, in nanoseconds.
func readHandshakes(out types.Output, connect, secure *sample) error {
	fields := strings.Fields(out.Stdout)
	if len(fields) != 2*rowLength {
		return fmt.Errorf("%d times were printed, not %d: %.500q", len(fields), 2*rowLength, out.Stdout)
	}
	for i, field := range fields {
		took, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return err
		}
		into := connect
		if i%2 == 1 {
			into = secure
		}
		*into = append(*into, time.Duration(took))
	}
	return nil
}
