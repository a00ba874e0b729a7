//go:build linux

// Command sandbox-agent runs inside each container; only sandboxd starts it. Its first argument is
// its mode:
//
//   - session speaks the protocol of agent/wire on stdin and stdout. The container's first process starts as a session, too, and
//     then becomes `sandbox-agent rest`.
//   - look-up looks paths up as the commands' user.
//   - access-times prints the access times of mounted files.
//   - open-files prints which databases and locks in a directory programs have open.
//   - process is the first process of a durable process's container (package launch), and lasting that of a persistent one.
//     Both take commands (package control), for which bridge connects to them. forward connects to ports there.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/creds"
	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/seccomp"
)

// The main goroutine stays on the process's first thread, as agent.Serve requires. The memory
// profiler is off, because nobody would read its table.
func init() {
	runtime.LockOSThread()
	runtime.MemProfileRate = 0
}

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandbox-agent:", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	if len(args) == 0 || (len(args) > 1 && !takesPaths[args[0]]) {
		return 1, fmt.Errorf(
			"usage: sandbox-agent session | rest | process | forward | lasting | bridge | access-times PATH... | look-up PATH... | open-files DIR (run by sandboxd inside a container)")
	}
	switch { // run as commands
	case args[0] == "access-times":
		times, err := agent.AccessTimes(args[1:])
		fmt.Println(strings.Join(times, "\n"))
		return exitCode(err)
	case args[0] == "open-files" && len(args) == 2:
		return exitCode(agent.OpenFiles(os.Stdout, args[1]))
	}
	keep, known := capabilities[args[0]]
	if !known {
		return 1, fmt.Errorf("unknown mode %q", args[0])
	}
	if args[0] == "rest" { // started by a session that has ended
		return exitCode(agent.RunInit())
	}
	score := agent.OpenOOMScore()
	commands, err := creds.Become(keep...)
	if err != nil {
		return launch.CodeAgent, err
	}
	if err := seccomp.Install(os.Getenv(seccomp.Variable) == seccomp.Allowed); err != nil {
		return 1, err
	}
	switch args[0] {
	case "process":
		return agent.RunProcess(launch.Dir, control.SocketPath, commands.UID, score)
	case "session":
		if err := agent.Serve(commands.UID, score); err != nil || os.Getpid() != 1 {
			return exitCode(err)
		}
		// Execute the program anew, so that nothing of the session takes memory, and without its
		// capabilities.
		return 1, unix.Exec(os.Args[0], []string{os.Args[0], "rest"}, os.Environ())
	case "lasting":
		return exitCode(agent.RunPersistent(control.SocketPath, commands.UID, commands.Root, score))
	case "look-up":
		return exitCode(agent.LookUp(commands.UID, args[1:], nil, false))
	case "bridge":
		return exitCode(agent.Bridge(control.SocketPath))
	default:
		return exitCode(agent.Forward())
	}
}

// takesPaths are the modes that have arguments.
var takesPaths = map[string]bool{"access-times": true, "look-up": true, "open-files": true}

// capabilities are those that each mode keeps: SETUID to run commands as their user, KILL to end
// them.
var capabilities = map[string][]string{
	"rest":    nil,
	"process": {"SETUID", "KILL"},
	"session": {"SETUID", "KILL"},
	"forward": nil,
	"lasting": {"SETUID", "KILL"},
	"bridge":  nil,
	"look-up": {"SETUID"},
}

func exitCode(err error) (int, error) {
	if err != nil {
		return 1, err
	}
	return 0, nil
}
