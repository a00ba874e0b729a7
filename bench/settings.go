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
	// out is the folder of the report; if it is empty, the report goes to standard output.
	out string
	// bin is the folder of the service's binaries.
	bin string
	// parts has the parts to measure; empty means all.
	parts []string
	// quick says that there are too few samples to mean much.
	quick bool
	// passes is how often everything is measured.
	passes int
	// Each of these is a number of samples.
	warm, cold, rounds, streams int
	session, rests              int
	dnsRounds, handshakes       int
	// dnsSeconds is how long one load of questions lasts.
	dnsSeconds int
	// users is how many users come at once in "Create and first command".
	users int
	// streamBytes is the size of a stream.
	streamBytes int64
}

// warmTurns is how many rows have that many warm samples.
func (cfg settings) warmTurns() int { return (cfg.warm + rowLength - 1) / rowLength }

func parseFlags(args []string, stderr io.Writer) (settings, error) {
	// Both passes together take an hour and a quarter on two slow processors.
	cfg := settings{cold: 10, rounds: 8, streams: 2, session: 50, rests: 3, users: 100,
		dnsRounds: 3, dnsSeconds: 2, handshakes: 400}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&cfg.warm, "n", 70, "samples of a warm exec, each way, in each of the two passes")
	runtimes := flags.String("runtimes", "runc,runsc", "runtimes to measure, as the engine knows them")
	flags.StringVar(&cfg.out, "out", ".", "folder for "+resultsName)
	sections := flags.String("sections", "", "measure these only, separated by commas: "+strings.Join(partNames(), ", ")+"; without --out it prints the report and writes no file (default all but crowd, which makes 1,000 containers)")
	flags.StringVar(&cfg.bin, "bin", "../bin", "folder of sandboxd and sandbox-agent")
	flags.IntVar(&cfg.passes, "passes", 2, "how often everything is measured")
	flags.BoolVar(&cfg.quick, "quick", false, "a smoke run: one pass, few samples, short streams; without --out it prints the report and writes no file")
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
		if !given["passes"] {
			cfg.passes = 1
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
	case cfg.passes < 1:
		return cfg, fmt.Errorf("--passes %d is not a number of passes", cfg.passes)
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
	cfg.session, cfg.rests, cfg.users = 10, 1, 20
	cfg.dnsRounds, cfg.dnsSeconds, cfg.handshakes = 1, 1, 30
}
