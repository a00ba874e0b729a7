package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/api/types"
)

// doctorCommand runs sandboxd's doctor, which has the code that checks a host, so that other
// commands do not load it. For a service on TCP it shows what the service finds on its own host.
func doctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Look for what is wrong on this host, and say what to do",
		Long: `doctor runs "sandboxd doctor", which must be on this host: it checks everything that the service needs, and the
service itself. "sandbox doctor --help" says more.

With --url or $SANDBOX_URL it asks that service to check its host instead, with the service's own settings, for
which the token must be one for everyone. Of the flags, only --json goes with that.`,
		Example: `  sudo sandbox doctor
  sudo sandbox doctor --offline
  sandbox --url https://sandbox.example.org:7480 --token-file ~/.sandbox-token doctor
  sandbox doctor --json | jq '.findings[] | select(.level == "fault")'`,
		DisableFlagParsing: true,
		PersistentPreRun:   func(*cobra.Command, []string) {},
		RunE: func(cmd *cobra.Command, args []string) error {
			flags, asJSON := cmd.InheritedFlags(), false
			flags.BoolVar(&asJSON, "json", false, "print JSON")
			flags.ParseErrorsAllowlist.UnknownFlags = true // sandboxd's doctor has flags of its own
			if err := flags.Parse(args); a.at() == "" || errors.Is(err, pflag.ErrHelp) {
				return asService(cmd, args)
			}
			flags.ParseErrorsAllowlist.UnknownFlags = false
			err := flags.Parse(args)
			if err == nil && flags.NArg() > 0 {
				err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
			}
			if err != nil {
				return fmt.Errorf(
					"cannot ask %s to check its host: %w; only --json goes with --url, and on that host \"sandbox doctor\" has more",
					a, err)
			}
			return remoteDoctor(cmd, a, asJSON)
		},
	}
}

// remoteDoctor shows what a service finds on its host. It exits with 1 if there is a fault.
func remoteDoctor(cmd *cobra.Command, a *app, asJSON bool) error {
	c, err := a.open()
	if err != nil {
		return err
	}
	defer c.Close()
	report, err := c.Doctor(cmd.Context())
	if err = show(cmd, asJSON, report, err, printReport); err != nil {
		return err
	}
	if slices.ContainsFunc(report.Findings, func(f types.DoctorFinding) bool {
		return f.Level == "fault"
	}) {
		return exitCode(1)
	}
	return nil
}

func printReport(out io.Writer, report types.DoctorReport) error {
	width := 0
	for _, f := range report.Findings {
		width = max(width, len(f.Check))
	}
	var text strings.Builder
	indent := "\n" + strings.Repeat(" ", width+11)
	for _, f := range report.Findings {
		found := f.Found
		if f.Remedy != "" {
			found += "\nto do: " + f.Remedy
		}
		lines := strings.Split(found, "\n")
		for i, line := range lines {
			lines[i] = printable(line)
		}
		fmt.Fprintf(&text, "%-*s  %-7s  %s\n", width, printable(f.Check), printable(f.Level),
			strings.Join(lines, indent))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// templateCommand runs sandboxd's template command in the same way.
func templateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "template COMMAND",
		Short: "Say what sandboxes of E2B's clients can be made from",
		Long: `template runs "sandboxd template", which must be on this host: it edits e2b.templates in the service's settings, and
pulls an image that Docker does not have. "sandbox template --help" says more.`,
		Example: `  sudo sandbox template add node node:24
  sandbox template list
  sudo sandbox template remove node`,
		DisableFlagParsing: true,
		PersistentPreRun:   func(*cobra.Command, []string) {},
		RunE:               asService,
	}
}

// asService replaces this process with sandboxd, run with the same command.
func asService(cmd *cobra.Command, args []string) error {
	program, err := serviceProgram()
	if err != nil {
		return err
	}
	return unix.Exec(program, append([]string{"sandboxd", cmd.Name()}, args...), os.Environ())
}

// serviceProgram returns the path of sandboxd, which is beside this program or in PATH.
func serviceProgram() (string, error) {
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), "sandboxd")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	program, err := exec.LookPath("sandboxd")
	if err != nil {
		return "", fmt.Errorf("cannot find sandboxd, which is on the service's host: %w", err)
	}
	return program, nil
}
