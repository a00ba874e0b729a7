// Freezer is what Docker calls in place of runsc. Its pause also stops gVisor itself, its kernel and
// its file server, so that a paused container takes no processor time. If nothing runs in the
// container, that is all there is to do, and it resumes at once. If something runs, runsc's own
// pause comes first. The freezer answers what Docker asks of a paused container. Everything else
// goes to the runsc beside it.
//
// In daemon.json it is the path of a runtime (docs/idle.md). Under the names that flags lists it
// also adds an argument. A shim calls it in the container's bundle, a directory named by the
// container's id.
//
// It sends SIGSTOP, and only to gVisor's own processes. The freezer of control groups would
// interrupt the system calls of the processes in which gVisor runs programs, which gVisor may not
// survive (https://github.com/google/gvisor/issues/14429), and in version 1 of control groups a
// frozen process outlives SIGKILL.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// flags are the arguments that go with the names under which the freezer is installed. For a
// runtime with arguments of its own Docker would write a shell script.
var flags = map[string][]string{
	"runsc-events":  {"--host-uds=open"},
	"runsc-offline": {"--network=none"},
}

func main() {
	err := run()
	var failed *exec.ExitError
	if errors.As(err, &failed) && failed.Exited() {
		os.Exit(failed.ExitCode()) // runsc has said why
	}
	fmt.Fprintln(os.Stderr, "runsc-freezer:", err)
	os.Exit(1)
}

// run answers a call, and ends the process if that succeeds.
func run() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find the runsc beside it: %w", err)
	}
	args := append([]string{}, flags[filepath.Base(os.Args[0])]...)
	c := call{
		runsc:   filepath.Join(filepath.Dir(self), "runsc"),
		args:    append(args, os.Args[1:]...),
		proc:    "/proc",
		cgroups: "/sys/fs/cgroup",
	}
	rest, err := c.answer()
	if err != nil {
		return err
	}
	if rest == nil {
		os.Exit(0)
	}
	err = syscall.Exec(c.runsc, append([]string{c.runsc}, rest...), os.Environ())
	return fmt.Errorf("cannot run %s: %w", c.runsc, err)
}
