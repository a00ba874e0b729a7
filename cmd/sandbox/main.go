// Command sandbox drives sandboxd from a shell: it runs commands in a user's sandbox, reads and
// writes its files, and shows what the service has.
//
// root.go has the commands that need no sandbox, connect.go finds the service, and target.go finds
// the sandbox of the other commands. exec.go and attach.go run commands, at this terminal with
// tty.go; process.go and the files whose names begin with process handle durable processes. wrap.go
// runs a command under a settings file, mcp.go serves a sandbox to an agent, and doctor.go runs
// sandboxd's doctor. read.go, ls.go, cp.go and files.go handle files, user.go removes users,
// credential.go and credentialset.go handle credentials, explain.go shows what a call would get,
// warm.go makes its container in advance, and egress.go with decisions.go shows what calls tried to
// reach.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// inFlags says in the words of this command line what a message of the service says in the API's.
var inFlags = strings.NewReplacer(
	"name that, or set follow", "name that, or use -L",
	"set recursive", "use -r",
	"read it with binary, or download it", "use --binary, or sandbox cp",
	"read it without offset, skipBytes and limit, or set text to lossy",
	"leave out --offset, --skip-bytes and --limit, or use --lossy",
	"offset, skipBytes and limit are for text, not for binary",
	"--offset, --skip-bytes and --limit are for text, not for --binary",
	"text and binary are both set", "--lossy and --binary are both given",
	"download it, or a part of it", "use sandbox cp",
	"skipBytes ", "--skip-bytes ", // and no part of a name
)

func main() {
	err := rootCommand().Execute()
	var exit exitCode
	switch {
	case err == nil:
	case errors.As(err, &exit):
		os.Exit(int(exit))
	default:
		fmt.Fprintln(os.Stderr, "sandbox:", inFlags.Replace(err.Error()))
		os.Exit(exitFailure)
	}
}

// exitFailure is the exit code for our own failures, as with docker run: 126 and 127 belong to the
// command.
const exitFailure = 125

// exitCode is the code to exit with without printing anything more.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }
