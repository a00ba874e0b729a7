package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// doctorCommand runs sandboxd's doctor, which has the code that checks a host, so that other commands do not load it.
func doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Look for what is wrong on this host, and say what to do",
		Long: `doctor runs "sandboxd doctor", which must be on this host: it checks everything that the service needs, and the
service itself. "sandbox doctor --help" says more.`,
		Example: `  sudo sandbox doctor
  sudo sandbox doctor --offline
  sandbox doctor --json | jq '.findings[] | select(.level == "fault")'`,
		DisableFlagParsing: true,
		// Flags and variables for a service on TCP are not checked here.
		PersistentPreRun: func(*cobra.Command, []string) {},
		RunE:             asService,
	}
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
