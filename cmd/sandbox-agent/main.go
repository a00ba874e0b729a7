//go:build linux

// Command sandbox-agent runs inside each container. `sandbox-agent init` is the container's first
// process; `sandbox-agent session` speaks the protocol of agent/wire on its stdin and stdout;
// `sandbox-agent witness` says what is mounted. It is started by sandboxd alone.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/agent"
)

// The main goroutine stays on the process's first thread, as agent.Serve wants it. The profiler's
// table is memory that nobody looks at.
func init() {
	runtime.LockOSThread()
	runtime.MemProfileRate = 0
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sandbox-agent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || (len(args) > 1 && args[0] != "witness") {
		return fmt.Errorf("usage: sandbox-agent init | session | witness PATH... (run by sandboxd inside a container)")
	}
	switch args[0] {
	case "witness":
		return agent.Witness(os.Stdout, args[1:])
	case "init":
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
		defer stop()
		children := make(chan os.Signal, 1)
		signal.Notify(children, unix.SIGCHLD)
		agent.InitProcess(ctx, children)
		return nil
	case "session":
		return agent.Serve()
	default:
		return fmt.Errorf("unknown mode %q", args[0])
	}
}
