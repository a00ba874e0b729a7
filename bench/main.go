// Command bench measures the service against its peers on the same engine, in the same container
// and in one interleaved run, and writes a report with a picture. It starts services of its own and
// removes everything that it has made.
//
// bench.go fixes what is measured in which order; latency.go, floor.go, cold.go, together.go, stream.go,
// slow.go, flood.go, memory.go, reading.go, grants.go, large.go and deciding.go measure; service.go and
// docker.go are the two sides; report.go, sections.go, filesections.go, grantsections.go and plot.go tell.
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
	"strings"
	"syscall"

	"github.com/docker/go-units"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
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
	picture, err := drawLatency(found)
	if err != nil {
		return err
	}
	if cfg.out == "" {
		_, err := io.WriteString(stdout, report(found))
		return err
	}
	if err := os.MkdirAll(cfg.out, 0o755); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	results := filepath.Join(cfg.out, "RESULTS.md")
	err = errors.Join(
		os.WriteFile(results, []byte(report(found)), 0o644),
		os.WriteFile(filepath.Join(cfg.out, pictureName), picture, 0o644))
	if err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	fmt.Fprintln(stderr, "written:", results)
	return nil
}

// settings are how much is measured.
type settings struct {
	// runtimes are the engine's names of what to measure, one after the other.
	runtimes []string
	// out is the folder of the report; empty for standard output without a picture.
	out string
	// bin is the folder of the service's binaries.
	bin string
	// quick says that the numbers are too few to mean much.
	quick bool
	// warm, cold, flood, rounds and streams count samples of their kind.
	warm, cold, flood, rounds, streams, reads, decisions int
	// streamBytes is how much one stream carries, and largeBytes a large file's size.
	streamBytes, largeBytes int64
}

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	cfg := settings{cold: 25, flood: 200, rounds: 20, streams: 3, reads: 2000, decisions: 5000, largeBytes: 1 << 30}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&cfg.warm, "n", 300, "samples of a warm exec, each way")
	runtimes := flags.String("runtimes", "runc,runsc", "runtimes to measure, as the engine knows them")
	flags.StringVar(&cfg.out, "out", "bench", "folder for RESULTS.md and "+pictureName)
	flags.StringVar(&cfg.bin, "bin", "bin", "folder of sandboxd and sandbox-agent")
	flags.BoolVar(&cfg.quick, "quick", false, "a smoke run: few samples, short streams, smaller files; without --out it prints the report and writes no file")
	bytes := flags.String("stream-bytes", "1GiB", "what one stream carries")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if cfg.quick {
		cfg.cold, cfg.flood, cfg.rounds, cfg.streams = 3, 20, 3, 1
		cfg.reads, cfg.decisions, cfg.largeBytes = 200, 500, 128<<20
		if !given["n"] {
			cfg.warm = 30
		}
		if !given["stream-bytes"] {
			*bytes = "64MiB"
		}
		if !given["out"] {
			cfg.out = ""
		}
	}
	var err error
	if cfg.streamBytes, err = units.RAMInBytes(*bytes); err != nil {
		return cfg, fmt.Errorf("--stream-bytes: %w", err)
	}
	cfg.runtimes = strings.Split(*runtimes, ",")
	switch {
	case flags.NArg() > 0:
		return cfg, fmt.Errorf("unknown argument %q", flags.Arg(0))
	case cfg.warm < 1:
		return cfg, fmt.Errorf("--n %d is not a number of samples", cfg.warm)
	case cfg.streamBytes < blockBytes || cfg.streamBytes%blockBytes != 0:
		return cfg, fmt.Errorf("--stream-bytes %s is not a whole number of MiB", *bytes)
	}
	return cfg, nil
}
