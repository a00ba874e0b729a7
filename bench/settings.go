package main

import (
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/docker/go-units"
)

// settings says what is measured in each pass, and how often.
type settings struct {
	// runtimes has Docker's names of the runtimes to measure, one after the other.
	runtimes []string
	// out is the folder of the report; if it is empty, the report goes to standard output, without
	// a picture.
	out string
	// bin is the folder of the service's binaries.
	bin string
	// parts has the parts to measure; empty means all.
	parts []string
	// quick says that there are too few samples to mean much.
	quick bool
	// Each of these is a number of samples.
	warm, cold, rounds, streams, reads, decisions int
	lines, session, rests                         int
	dnsRounds, handshakes, registrations          int
	// dnsSeconds is how long one load of questions lasts.
	dnsSeconds int
	// users is how many users come in each row of "Create and first command".
	users int
	// processes is how many processes are adopted at once.
	processes int
	// streamBytes is the size of a stream, largeBytes that of a large file, and logBytes that of a
	// process's output.
	streamBytes, largeBytes, logBytes int64
}

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	// Both passes together should take no more than some 25 minutes.
	cfg := settings{cold: 10, rounds: 8, streams: 2, reads: 1000, decisions: 3000, largeBytes: 512 << 20,
		lines: 20, session: 50, rests: 3, users: 100,
		dnsRounds: 3, dnsSeconds: 2, handshakes: 400, registrations: 100,
		processes: 50, logBytes: 512 << 20}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&cfg.warm, "n", 70, "samples of a warm exec, each way, in each of the two passes")
	runtimes := flags.String("runtimes", "runc,runsc", "runtimes to measure, as the engine knows them")
	flags.StringVar(&cfg.out, "out", ".", "folder for "+resultsName+" and "+pictureName)
	sections := flags.String("sections", "", "measure these only, separated by commas: "+strings.Join(partNames(), ", ")+"; without --out it prints the report and writes no file (default all)")
	flags.StringVar(&cfg.bin, "bin", "../bin", "folder of sandboxd and sandbox-agent")
	flags.BoolVar(&cfg.quick, "quick", false, "a smoke run: few samples, short streams, smaller files; without --out it prints the report and writes no file")
	bytes := flags.String("stream-bytes", "512MiB", "size of one stream")
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
	if cfg.bin, err = filepath.Abs(cfg.bin); err != nil { // its programs may run in another working directory
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

// fewer sets the numbers of samples of a smoke run.
func (cfg *settings) fewer() {
	cfg.cold, cfg.rounds, cfg.streams = 3, 3, 1
	cfg.lines, cfg.session, cfg.rests = 10, 10, 1
	cfg.reads, cfg.decisions, cfg.largeBytes = 200, 500, 128<<20
	cfg.dnsRounds, cfg.dnsSeconds, cfg.handshakes, cfg.registrations = 1, 1, 30, 50
	cfg.users, cfg.processes, cfg.logBytes = 20, 10, 128<<20
}
