package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	containertypes "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/cgroup"
)

// Docker is the Engine that is a Docker daemon.
type Docker struct{ client *client.Client }

var _ Engine = Docker{}

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

// NewDocker returns the Engine behind a client, which Close closes. The daemon need not be up.
func NewDocker(docker *client.Client) Docker { return Docker{docker} }

// Explain implements Engine. Docker's error classes are not ours, so nothing is wrapped: a missing
// container does not mean "not found" to a caller.
func (d Docker) Explain(err error) error {
	switch {
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf(
			"no Docker engine answers at %s: start it (systemctl start docker, or dockerd) and "+
				"try again; the service goes on by itself",
			d.client.DaemonHost())
	case strings.Contains(err.Error(), "nknown runtime") ||
		strings.Contains(err.Error(), "unknown or invalid runtime"):
		return fmt.Errorf(
			"%v; register the runtime with Docker (scripts/setup.sh does it for runsc)", err)
	default:
		return fmt.Errorf("%v", err)
	}
}

// Close implements Engine.
func (d Docker) Close() error { return d.client.Close() }

// Create implements Engine.
func (d Docker) Create(ctx context.Context, s Spec) (id string, err error) {
	created, err := d.client.ContainerCreate(
		ctx, s.config(), s.hostConfig(), s.networkingConfig(), nil, s.Name)
	return created.ID, err
}

// Start implements Engine.
func (d Docker) Start(ctx context.Context, id string) error {
	err := d.client.ContainerStart(ctx, id, containertypes.StartOptions{})
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "Address already in use"), isLinkFault(err.Error()):
		return kind{err, ErrAddressTaken}
	case isGVisorFault(err.Error()):
		return kind{err, ErrRuntimeDied}
	}
	return err
}

// isGVisorFault reports whether a container did not start because gVisor's kernel had ended, or its
// gofer: runsc then finds that the other end of its connection is gone.
func isGVisorFault(text string) bool {
	for _, ending := range []string{"failed: EOF", "connection reset by peer", "broken pipe"} {
		if strings.Contains(text, "urpc method") && strings.Contains(text, ending) {
			return true
		}
	}
	return strings.Contains(text, "cannot read client sync file")
}

// isLinkFault reports whether a container did not start because it could not be connected where its
// runtime was told (tools/runsc/linker): its gateway was made anew meanwhile, or another interface
// has the name that follows from the address.
func isLinkFault(text string) bool {
	_, why, is := strings.Cut(text, "cannot connect the container")
	return is && (strings.Contains(why, "is not the gateway's network namespace any more") ||
		strings.Contains(why, "cannot make interface") && strings.Contains(why, "file exists"))
}

// Rename implements Engine.
func (d Docker) Rename(ctx context.Context, id, name string) error {
	return d.client.ContainerRename(ctx, id, name)
}

// Inspect implements Engine.
func (d Docker) Inspect(ctx context.Context, id string) (Container, error) {
	found, err := d.client.ContainerInspect(ctx, id)
	if err != nil {
		return Container{}, err
	}
	if found.ContainerJSONBase == nil || found.State == nil || found.Config == nil {
		return Container{}, errors.New("the answer of Docker about the container is incomplete")
	}
	c := Container{
		ID: found.ID, Name: strings.TrimPrefix(found.Name, "/"), State: stateOf(found.State.Status),
		Labels: found.Config.Labels, Mounts: mountsOf(found.Mounts), PID: found.State.Pid,
		ExitCode: found.State.ExitCode, OOMKilled: found.State.OOMKilled,
	}
	if found.NetworkSettings != nil {
		c.Endpoints = endpointsOf(found.NetworkSettings.Networks)
	}
	switch {
	case found.State.Paused:
		c.State = Paused
	case found.State.Running: // also while it is being removed
		c.State = specs.StateRunning
	case c.State == specs.StateRunning || c.State == Paused:
		c.State = specs.StateStopped
	}
	c.Started, _ = time.Parse(time.RFC3339Nano, found.State.StartedAt)
	c.Ended, _ = time.Parse(time.RFC3339Nano, found.State.FinishedAt)
	return c, nil
}

// stateOf translates Docker's states.
func stateOf(state containertypes.ContainerState) specs.ContainerState {
	switch state {
	case containertypes.StateRunning:
		return specs.StateRunning
	case containertypes.StatePaused:
		return Paused
	case containertypes.StateCreated:
		return specs.StateCreated
	case containertypes.StateRestarting:
		return specs.StateCreating
	case containertypes.StateRemoving:
		return Removing
	}
	return specs.StateStopped
}

// List implements Engine.
func (d Docker) List(ctx context.Context, stopped bool, labels ...string) ([]Container, error) {
	listed, err := d.client.ContainerList(ctx, containertypes.ListOptions{
		All: stopped, Filters: labelFilter(labels...),
	})
	if err != nil {
		return nil, err
	}
	var all []Container
	for _, found := range listed {
		c := Container{
			ID: found.ID, Name: strings.TrimPrefix(strings.Join(found.Names, " "), "/"),
			State: stateOf(found.State), Labels: found.Labels, Mounts: mountsOf(found.Mounts),
		}
		if found.NetworkSettings != nil {
			c.Endpoints = endpointsOf(found.NetworkSettings.Networks)
		}
		all = append(all, c)
	}
	return all, nil
}

func mountsOf(found []containertypes.MountPoint) (mounts []specs.Mount) {
	for _, m := range found {
		source := m.Source
		if m.Type == mount.TypeVolume {
			source = m.Name
		}
		mounts = append(mounts, BindMount(source, m.Destination, !m.RW))
		mounts[len(mounts)-1].Type = string(m.Type)
	}
	return mounts
}

func endpointsOf(networks map[string]*network.EndpointSettings) (all []Endpoint) {
	for name, on := range networks {
		if on == nil {
			continue
		}
		at := Endpoint{Network: name}
		at.Addr, _ = netip.ParseAddr(on.IPAddress)
		at.MAC, _ = net.ParseMAC(on.MacAddress)
		all = append(all, at)
	}
	slices.SortFunc(all, func(a, b Endpoint) int { return strings.Compare(a.Network, b.Network) })
	return all
}

// maxStats bounds Docker's answer to Usage, in bytes.
const maxStats = 1 << 20

// Usage implements Engine.
func (d Docker) Usage(ctx context.Context, id string) (cgroup.Usage, error) {
	answer, err := d.client.ContainerStatsOneShot(ctx, id)
	if err != nil {
		return cgroup.Usage{}, err
	}
	defer answer.Body.Close()
	var stats containertypes.StatsResponse
	err = json.NewDecoder(io.LimitReader(answer.Body, maxStats)).Decode(&stats)
	if err != nil {
		return cgroup.Usage{}, fmt.Errorf("cannot read what Docker says of the container: %w", err)
	}
	m := stats.MemoryStats
	cache := m.Stats["inactive_file"] // of cgroup v2
	if old, is := m.Stats["total_inactive_file"]; is {
		cache = old
	}
	cache = min(cache, m.Usage)
	return cgroup.Usage{
		At: time.Now(), CPU: time.Duration(stats.CPUStats.CPUUsage.TotalUsage),
		Memory: int64(m.Usage - cache), Cache: int64(cache), MemoryLimit: int64(m.Limit),
	}, nil
}
