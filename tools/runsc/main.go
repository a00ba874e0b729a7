// Runsc is gVisor's runsc, as its Go module has it, made to start faster in two ways. Its seccomp
// filters are compiled ahead (package filters). Its table of file descriptors has its full size
// before the process has a second thread (entry_amd64.s).
package main

import (
	"gvisor.dev/gvisor/runsc/cli/maincli"

	"github.com/daycare-run/sandbox/tools/runsc/filters"
)

func main() {
	filters.Register()
	maincli.Main()
}
