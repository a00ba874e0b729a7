// Command sandboxd is the service: it listens on a Unix socket and runs users' commands in gVisor
// containers of their own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := rootCommand().ExecuteContext(ctx); err != nil {
		own := exitError{1, err}
		errors.As(err, &own)
		if own.error != nil {
			fmt.Fprintln(os.Stderr, "sandboxd:", err)
		}
		os.Exit(own.code)
	}
}

// exitError is an error with its own exit code, or only an exit code if everything has already been
// printed.
type exitError struct {
	code int
	error
}
