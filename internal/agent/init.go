//go:build linux

package agent

import (
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// RunInit is what a container's first process does after its session: it collects orphans until an
// agent ends without having confirmed that all commands have ended. Then it returns an error; when
// the first process exits, the kernel kills whatever is left in the container.
func RunInit() error {
	children, begun := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	signal.Notify(begun, unix.SIGUSR1)
	if err := harden(); err != nil {
		return err
	}
	spool, err := openSpool(wire.SpoolPath)
	if err != nil {
		return err
	}
	lost := make(chan error, 1)
	go func() { lost <- spool.watch(begun) }()
	for {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 && !errors.Is(err, unix.EINTR) {
				break
			}
		}
		select {
		case <-children:
		case err := <-lost:
			return fmt.Errorf("ending the container: %w", err)
		}
	}
}
