package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/moby/term"
	"github.com/spf13/cobra"

	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
	"github.com/daycare-run/sandbox/internal/cli/probes"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/version"
)

// doctorFlags are the flags of `sandboxd doctor`.
type doctorFlags struct {
	settings          *string
	socket, probeName string
	offline, asJSON   bool
	cluster           bool
}

// exitUsage is the exit code for an invalid command line, in commands whose exit code 1 has another
// meaning.
const exitUsage = 2

func doctorCommand(settings *string) *cobra.Command {
	f := doctorFlags{settings: settings}
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Look for what is wrong on this host, and say what to do",
		Long: `doctor checks everything that the service needs: its settings, Docker, runtimes and image, the kernel's rules,
resolvers, ports, tokens and certificate, folders, disks and clock. Then it asks the service for its state, and lets it run
a command of the user "doctor", look up a name that this user may not reach, and one that it may; nothing connects to
that name. It uses the service's socket. "sandbox doctor" does the same.

The settings are those of --settings or SANDBOXD_SETTINGS, or else those that the running service was started
with, or else those of this shell. With --offline it checks only the host, and the service need not run.
Without root it sees less, and says what it skips. Of the user "doctor" an empty home remains, and its containers
until their idle time has passed. With --cluster it also asks etcd and the other hosts (docs/cluster.md), and
writes a file into usersDir for a moment.

It exits with 0 if there is no fault, even with warnings; with 1 if there is a fault; and with 2 if the command
line is wrong.`,
		Example: `  sudo sandboxd doctor
  sudo sandboxd doctor --offline
  sandboxd doctor --settings ./settings.json --probe-name example.org
  sudo sandboxd doctor --cluster
  sandboxd doctor --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return exitError{exitUsage, err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return runDoctor(cmd, f) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return exitError{exitUsage, err}
	})
	flags := cmd.Flags()
	flags.StringVar(&f.socket, "socket", "",
		"the service's socket (default: $SANDBOX_SOCKET, or that of the settings)")
	flags.StringVar(&f.probeName, "probe-name", probeName(),
		"a name that a call may reach, to look up")
	flags.BoolVar(&f.offline, "offline", false, "check only the host, not the service")
	_ = cmd.RegisterFlagCompletionFunc("probe-name", cobra.NoFileCompletions)
	flags.BoolVar(&f.cluster, "cluster", false,
		"also check the cluster's other hosts, etcd and the homes' filesystem")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	return cmd
}

// probeName returns a name that most operators allow: that of a package registry.
func probeName() string {
	node, err := policy.Presets{}.Resolve([]string{"node"})
	if err != nil {
		return ""
	}
	names := node.List()
	return names[max(slices.IndexFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "registry.")
	}), 0)]
}

func runDoctor(cmd *cobra.Command, f doctorFlags) error {
	name, err := policy.ParseDomains([]string{f.probeName})
	if err != nil || strings.Contains(f.probeName, "*") || len(name.List()) != 1 {
		return exitError{exitUsage,
			fmt.Errorf("--probe-name %q is not a host name such as example.org", f.probeName)}
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	named := cmp.Or(f.socket, os.Getenv("SANDBOX_SOCKET"))
	socket := cmp.Or(named, config.Default().Listen)
	s := probes.FindSettings(*f.settings, socket)
	if s.Err == nil && named == "" {
		socket = s.Listen
	}
	c := client.New(socket)
	defer c.Close()
	checks, closeHost := probes.Host(s, f.probeName)
	defer closeHost()
	if f.cluster && s.Err == nil {
		more, closeCluster, err := probes.Cluster(s.Config)
		if err != nil {
			return exitError{exitUsage, err}
		}
		defer closeCluster()
		checks = append(checks, more...)
	}
	if !f.offline {
		checks = append(checks, doctor.ServiceAnswers(socket, version.String(), c.Health))
		if s.Err == nil {
			probe := &doctor.Probe{Service: c, Ask: s.AskDocker, Name: f.probeName,
				Upstreams: s.Docker.IsolatedDNSServers}
			defer func() { _ = probe.Close(ctx) }()
			checks = append(checks, probe.Checks()...)
		}
	}
	each := newFindingTable(out, checks).print
	if f.asJSON {
		each = func(doctor.Finding) {}
	}
	report := doctor.Run(ctx, checks, each)
	if f.asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		_, err = fmt.Fprintf(out, "\n%s\n", report.Summary())
	}
	if err == nil && report.Faults > 0 {
		return exitError{code: 1}
	}
	return err
}

// findingTable prints findings as they arrive.
type findingTable struct {
	out    io.Writer
	name   int // width of the first column
	colour bool
}

func newFindingTable(out io.Writer, checks []doctor.Check) findingTable {
	file, isFile := out.(*os.File)
	t := findingTable{out: out, colour: isFile && term.IsTerminal(file.Fd()) &&
		os.Getenv("NO_COLOR") == ""}
	for _, check := range checks {
		t.name = max(t.name, len(check.Name))
	}
	return t
}

// levels says how each level is written, and in which terminal colour.
var levels = map[string]struct{ text, colour string }{
	doctor.OK: {"ok", "32"}, doctor.Warning: {"warning", "33"}, doctor.Fault: {"FAULT", "31;1"},
	doctor.Skipped: {"skipped", "2"},
}

func (t findingTable) print(f doctor.Finding) {
	level := fmt.Sprintf("%-7s", levels[f.Level].text)
	if t.colour {
		level = "\x1b[" + levels[f.Level].colour + "m" + level + "\x1b[0m"
	}
	indent := strings.Repeat(" ", t.name+len("  warning  "))
	text := fmt.Sprintf("%-*s  %s  %s\n", t.name, f.Check, level, indented(f.Found, indent))
	if f.Remedy != "" {
		text += indent + "to do: " + indented(f.Remedy, indent) + "\n"
	}
	_, _ = io.WriteString(t.out, text) // if nobody reads the output, the exit code remains
}

// indented formats a text of several lines so that it stays in its column and contains no terminal
// control characters.
func indented(text, indent string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = printableText(line)
	}
	return strings.Join(lines, "\n"+indent)
}

// printableText replaces what a terminal cannot show. Quotes stay as they are.
func printableText(text string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}
