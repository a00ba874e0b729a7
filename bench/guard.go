package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/apitypes"
)

// guarded is what the guard costs, beside the way past it.
type guarded struct {
	// guard and direct are downloads over TLS.
	guard, direct speeds
	// The times of a TCP connection, and of the connection and the TLS handshake.
	guardConnect, directConnect, guardSecure, directSecure sample
	// idle and sockets are how many connections a program had open, and how many more sockets sandboxd
	// had then; before and during are its resident memory, in bytes.
	idle, sockets  int
	before, during int64
}

// measureGuardStreams lets both ways take turns, of which every second begins with the other one.
func (s *service) measureGuardStreams(ctx context.Context, found *guarded) error {
	ways := []struct {
		domains []string
		speeds  *speeds
	}{{byName, &found.guard}, {anywhere, &found.direct}}
	rounds := 2*s.settings.streams - 1
	for round := range rounds {
		for i := range ways {
			way := ways[(round+i)%len(ways)]
			speed, err := s.download(ctx, way.domains, s.settings.streamBytes)
			if err != nil {
				return err
			}
			*way.speeds = append(*way.speeds, speed)
		}
		s.say("%s: a stream over TLS, round %d of %d: %s MB/s, past the guard %s MB/s", s.runtime, round+1, rounds,
			megabytes(found.guard[round]), megabytes(found.direct[round]))
	}
	return nil
}

// download is how fast curl inside gets so many bytes over one TLS connection, from the first byte on.
func (s *service) download(ctx context.Context, domains []string, bytes int64) (float64, error) {
	out, err := s.reach(ctx, domains, "curl", "-sS", "--http1.1", "--cacert", "/home/"+caFile, "-o", "/dev/null",
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

//go:embed handshakes.py
var handshakesScript []byte

// measureHandshakes takes turns in rows, each of which is one call.
func (s *service) measureHandshakes(ctx context.Context, found *guarded) error {
	if err := os.WriteFile(s.inHome("handshakes.py"), handshakesScript, 0o644); err != nil {
		return err
	}
	ways := []struct {
		domains         []string
		connect, secure *sample
	}{{byName, &found.guardConnect, &found.guardSecure}, {anywhere, &found.directConnect, &found.directSecure}}
	for turn := 0; len(found.guardSecure) < s.settings.handshakes; turn++ {
		for i := range ways {
			way := ways[(turn+i)%len(ways)]
			out, err := s.reach(ctx, way.domains, "python3", "/home/handshakes.py", s.world.Addr(originNumber).String(), originName, "/home/"+caFile, fmt.Sprint(rowLength))
			if err != nil {
				return err
			}
			if err := readHandshakes(out, way.connect, way.secure); err != nil {
				return err
			}
		}
	}
	return nil
}

// readHandshakes reads the two times of each connection, in nanoseconds.
func readHandshakes(out apitypes.Output, connect, secure *sample) error {
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
