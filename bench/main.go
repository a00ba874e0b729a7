// Command bench measures the service against its peers on the same engine, in the same container
// and in one interleaved run, and writes a report. It starts services of its own and removes
// everything that it has made.
//
// bench.go has what a run shares and finds. steps.go sets what is measured and in which order,
// settings.go how often, and parts.go what can be left out. turns.go compares ways by turns, and
// stats.go has their times. Each section has a file with its measurement, its targets and its part
// of the report. Commands: warm.go, session.go, rest.go, cold.go, create.go with refill.go,
// together.go, stream.go, memory.go, grants.go, crowd.go, processes.go, e2b.go. What agents do all day:
// work.go with workjobs.go. Network: network.go, dns.go with dnsload.go, guard.go. service.go and
// docker.go are the two sides, outside.go has the test internet, filter.go our DNS filter by
// itself, peer.go other servers, and proc.go and machine.go what the system says. report.go,
// verdict.go and why.go write the report. floor is the floor program.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures and writes the report. It runs the DNS filter if this process is the one for that.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 2 && args[0] == filterWord {
		return runFilter(ctx, args[1])
	}
	cfg, err := parseFlags(args, stderr)
	if err != nil {
		return err
	}
	found, err := measure(ctx, cfg, stderr)
	if err != nil {
		if ctx.Err() != nil && !errors.Is(err, errLeft) {
			return errors.New("stopped; everything that it had made is removed")
		}
		return err
	}
	if cfg.out == "" {
		_, err := io.WriteString(stdout, report(found))
		return errors.Join(err, found.faults())
	}
	file := filepath.Join(cfg.out, resultsName)
	if err := errors.Join(os.MkdirAll(cfg.out, 0o755), os.WriteFile(file, []byte(report(found)), 0o644)); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	fmt.Fprintln(stderr, "written:", file)
	return found.faults()
}

// faults returns why parts were not measured.
func (r results) faults() error {
	var faults []error
	for i, found := range r.passes {
		for part, fault := range found.failed {
			faults = append(faults, fmt.Errorf("pass %d: %s was not measured: %s", i+1, part, fault))
		}
	}
	return errors.Join(faults...)
}

const resultsName = "RESULTS.md"
