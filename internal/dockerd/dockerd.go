// Package dockerd is what must be known about the Docker daemon itself: how to connect to it, what
// its errors ask a person to do, and what it reports about itself (info.go). What it does with
// containers is package engine's.
package dockerd

import (
	"fmt"
	"strings"

	"github.com/docker/docker/client"
)

// Client is the client of the Docker API, for packages that pass it on.
type Client = client.Client

// Connect returns a client for the Docker daemon behind a Unix socket; it speaks whatever API
// version the daemon does. It does not connect yet: if the daemon is down, the calls fail.
func Connect(socketPath string) (*client.Client, error) {
	docker, err := client.NewClientWithOpts(client.WithHost("unix://"+socketPath),
		client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("cannot use Docker's socket %s: %w", socketPath, err)
	}
	return docker, nil
}

// Explain turns an error from Docker into one for our callers. Docker's error classes are not ours,
// so nothing is wrapped: a missing container does not mean "not found" to a caller.
func Explain(docker *client.Client, err error) error {
	switch {
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf(
			"no Docker engine answers at %s: start it (systemctl start docker, or dockerd) and try again; the service goes on by itself",
			docker.DaemonHost())
	case strings.Contains(err.Error(), "nknown runtime") ||
		strings.Contains(err.Error(), "unknown or invalid runtime"):
		return fmt.Errorf(
			"%v; register the runtime with Docker (scripts/setup.sh does it for runsc)", err)
	default:
		return fmt.Errorf("%v", err)
	}
}
