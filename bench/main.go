// Command bench measures the service against its peers on the same engine, in the same container
// and in one interleaved run, and writes a report. It starts services of its own and
// removes everything that it has made.
//
// bench.go sets what is measured, in which order and how often; parts.go sets what can be left out.
// Commands: warm.go, session.go, rest.go, floor.go, cold.go, create.go, refill.go, together.go,
// stream.go, memory.go, grants.go, processes.go, e2b.go. What agents do all day: work.go. Network:
// dns.go, guard.go, idle.go, network.go. service.go and docker.go are the two sides, outside.go has
// the test internet, and helper.go what must be a process of its own. report.go, verdict.go, why.go
// and *sections.go write the report.
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
	if isHelper(os.Args) {
		if err := help(ctx, os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures and writes the report.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
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
	if err := write(cfg, found); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	fmt.Fprintln(stderr, "written:", filepath.Join(cfg.out, resultsName))
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

// write writes the report's files.
func write(cfg settings, found results) error {
	if err := os.MkdirAll(cfg.out, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(cfg.out, resultsName), []byte(report(found)), 0o644)
}
