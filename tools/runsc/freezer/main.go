// Freezer is what Docker calls in place of runsc. Its pause also stops gVisor itself, its kernel and
// its file server, so that a paused container takes no processor time. If nothing runs in the
// container, that is all there is to do, and it resumes at once. If something runs, runsc's own
// pause comes first. The freezer answers what Docker asks of a paused container. Everything else
// goes to the runsc beside it.
//
// In daemon.json it is the path of a runtime (docs/idle.md). Under the names that flags lists it
// also adds an argument, and under the name runsc-linked it has the linker give a container its
// network interface once that is created. A shim calls it in the container's bundle, a directory named
// by the container's id.
//
// It sends SIGSTOP, and only to gVisor's own processes. The freezer of control groups would
// interrupt the system calls of the processes in which gVisor runs programs, which gVisor may not
// survive (https://github.com/google/gvisor/issues/14429), and in version 1 of control groups a
// frozen process outlives SIGKILL.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// flags are the arguments that go with the names under which the freezer is installed. For a
// runtime with arguments of its own Docker would write a shell script.
var flags = map[string][]string{
	"runsc-events":  {"--host-uds=open"},
	"runsc-offline": {"--network=none"},
}

// linked is the name under which the linker comes after a creation.
const linked = "runsc-linked"

func main() {
	err := run()
	var failed *exec.ExitError
	if errors.As(err, &failed) && failed.Exited() {
		os.Exit(failed.ExitCode()) // runsc has said why
	}
	fmt.Fprintln(os.Stderr, "runsc-freezer:", err)
	os.Exit(1)
}

// createLinked has a container created, and connected: runsc sets its network up when it starts. One
// that cannot be connected is deleted, as Docker leaves it behind if it fails later.
func (c call) createLinked(at int, linker string) error {
	create := exec.Command(c.runsc, c.args...)
	create.Stdin, create.Stdout, create.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := create.Run(); err != nil {
		return err
	}
	out, err := exec.Command(linker).CombinedOutput()
	if err == nil {
		os.Exit(0)
	}
	id := c.args[len(c.args)-1]
	left := ""
	if err := exec.Command(c.runsc, append(slices.Clone(c.args[:at]), "delete", "--force", id)...).Run(); err != nil {
		left = fmt.Sprintf(" (nor delete it: %v)", err)
	}
	err = fmt.Errorf("cannot connect the container%s: %v: %s", left, err, bytes.TrimSpace(out))
	return errors.Join(err, c.log(err))
}

// log adds an error to runsc's log: a creation's error output is the container's, and a shim reads
// why it failed from there.
func (c call) log(why error) error {
	at := slices.IndexFunc(c.args, func(arg string) bool { return arg == "--log" || strings.HasPrefix(arg, "--log=") })
	if at < 0 {
		return nil
	}
	path, is := strings.CutPrefix(c.args[at], "--log=")
	if !is {
		path = c.args[at+1]
	}
	line, err := json.Marshal(map[string]string{"level": "error", "msg": why.Error(), "time": time.Now().Format(time.RFC3339)})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return errors.Join(err, file.Close())
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
	if at := slices.Index(c.args, "create"); at >= 0 && filepath.Base(os.Args[0]) == linked {
		return c.createLinked(at, filepath.Join(filepath.Dir(self), "runsc-linker"))
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
