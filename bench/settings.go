package main

import (
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/docker/go-units"
)

// settings are how much is measured in each pass.
type settings struct {
	// runtimes are the engine's names of what to measure, one after the other.
	runtimes []string
	// out is the folder of the report; empty for standard output without a picture.
	out string
	// bin is the folder of the service's binaries.
	bin string
	// parts are what to measure; none for everything.
	parts []string
	// quick says that the numbers are too few to mean much.
	quick bool
	// These count samples of their kind.
	warm, cold, flood, rounds, streams, reads, decisions int
	lines, session, rests                                int
	dnsRounds, handshakes, registrations, installs       int
	// dnsSeconds is how long one load of questions lasts.
	dnsSeconds int
	// users come in each shape of "Create and first command".
	users int
	// processes are to be adopted at once.
	processes int
	// streamBytes is how much one stream carries, largeBytes a large file's size, and logBytes what a
	// process prints.
	streamBytes, largeBytes, logBytes int64
}

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	// All of it, twice, is to take no more than some 25 minutes.
	cfg := settings{cold: 10, flood: 60, rounds: 8, streams: 2, reads: 1000, decisions: 3000, largeBytes: 512 << 20,
		lines: 20, session: 50, rests: 3, users: 100,
		dnsRounds: 3, dnsSeconds: 2, handshakes: 400, registrations: 100, installs: 4,
		processes: 50, logBytes: 512 << 20}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&cfg.warm, "n", 70, "samples of a warm exec, each way, in each of the two passes")
	runtimes := flags.String("runtimes", "runc,runsc", "runtimes to measure, as the engine knows them")
	flags.StringVar(&cfg.out, "out", ".", "folder for "+resultsName+" and "+pictureName)
	sections := flags.String("sections", "", "measure these only, separated by commas: "+strings.Join(partNames(), ", ")+"; without --out it prints the report and writes no file (default all)")
	flags.StringVar(&cfg.bin, "bin", "../bin", "folder of sandboxd and sandbox-agent")
	flags.BoolVar(&cfg.quick, "quick", false, "a smoke run: few samples, short streams, smaller files; without --out it prints the report and writes no file")
	bytes := flags.String("stream-bytes", "512MiB", "what one stream carries")
	if err := flags.Parse(args); err != nil {
		return cfg, err
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if cfg.quick {
		cfg.fewer()
		if !given["n"] {
			cfg.warm = 10
		}
		if !given["stream-bytes"] {
			*bytes = "64MiB"
		}
	}
	if !given["out"] && (cfg.quick || *sections != "") {
		cfg.out = ""
	}
	var err error
	if cfg.bin, err = filepath.Abs(cfg.bin); err != nil { // what starts it may have another working directory
		return cfg, err
	}
	if *sections != "" {
		if cfg.parts, err = chooseParts(*sections); err != nil {
			return cfg, err
		}
	}
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

// fewer are the samples of a smoke run.
func (cfg *settings) fewer() {
	cfg.cold, cfg.flood, cfg.rounds, cfg.streams = 3, 20, 3, 1
	cfg.lines, cfg.session, cfg.rests = 10, 10, 1
	cfg.reads, cfg.decisions, cfg.largeBytes = 200, 500, 128<<20
	cfg.dnsRounds, cfg.dnsSeconds, cfg.handshakes, cfg.registrations, cfg.installs = 1, 1, 30, 50, 1
	cfg.users, cfg.processes, cfg.logBytes = 20, 10, 128<<20
}
