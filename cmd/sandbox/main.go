// Command sandbox drives sandboxd from a shell: it runs commands in a user's sandbox, reads and writes
// its files, and shows what the service has.
//
// root.go has the commands that need no sandbox, connect.go how the service is found and target.go how the
// others find their sandbox; exec.go and attach.go run commands, and tty.go at this terminal; process.go and the
// files that begin like it have those on durable processes. wrap.go runs a command under a settings file, mcp.go
// serves a sandbox to an agent, and doctor.go runs the doctor of sandboxd. read.go, ls.go and cp.go
// are the commands on files, explain.go shows what a call would get, warm.go has its container made, and egress.go with decisions.go what calls
// reached.
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	err := rootCommand().Execute()
	var exit exitCode
	switch {
	case err == nil:
	case errors.As(err, &exit):
		os.Exit(int(exit))
	default:
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		os.Exit(exitFailure)
	}
}

// exitFailure is the exit code for our own failures, as with docker run: 126 and 127 are the
// command's.
const exitFailure = 125

// exitCode is the code to exit with when everything has been said.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
