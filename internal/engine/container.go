package engine

import (
	"net"
	"net/netip"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// States besides runtime-spec's. All processes of a Paused container were stopped by Pause. Docker
// 20.10 that removes a container twice at the same moment may go on listing it as Removing,
// although Inspect does not find it, until Docker is started again.
const (
	Paused   specs.ContainerState = "paused"
	Removing specs.ContainerState = "removing"
)

// Container is one as the engine knows it.
type Container struct {
	ID   string
	Name string
	// State is one of runtime-spec's, Paused or Removing.
	State specs.ContainerState
	// Labels are those that it was made with.
	Labels map[string]string
	// Mounts have a Type, a Source (of a volume its name), a Destination, and the option "ro".
	Mounts []specs.Mount
	// Endpoints are where it is on networks; without an address while it does not run.
	Endpoints []Endpoint

	// What follows is of Inspect alone. PID is the first process's, as the engine's host counts; 0
	// if it does not run, or the engine does not say.
	PID int
	// Started is zero if it never ran, Ended if it never ended; ExitCode and OOMKilled are about
	// the end: the latter says that the kernel has killed a process because memory ran out.
	Started, Ended time.Time
	ExitCode       int
	OOMKilled      bool
}

// Runs reports whether a container has processes, which may be paused.
func (c Container) Runs() bool { return c.State == specs.StateRunning || c.State == Paused }

// Endpoint is a container's place on a network.
type Endpoint struct {
	Network string
	// Addr and MAC are the interface's; invalid and nil if it has none.
	Addr netip.Addr
	MAC  net.HardwareAddr
}

// Network is a bridge network.
type Network struct {
	ID, Name string
	Labels   map[string]string
	// Bridge is the name of its interface on the host.
	Bridge string
	// Subnet has the containers' addresses, and Gateway is the bridge's.
	Subnet  netip.Prefix
	Gateway netip.Addr
	// InUse says that containers are on it; only of FindNetwork.
	InUse bool
	// Fault says how it differs from one that MakeNetwork makes; empty if it does not. With a
	// Fault, Subnet and Gateway may be missing. Only of FindNetwork.
	Fault string
}

// EventKind is what has happened.
type EventKind int

// What happens. Disconnected is about a container that was taken off a network, as when it ends.
// Resumed is about one that goes on after a pause, whoever asked for that. ImagesChanged is about
// no container: an image came, went, or got another name.
const (
	Ended EventKind = iota + 1
	Removed
	Disconnected
	Resumed
	ImagesChanged
)

// Event is one thing that has happened.
type Event struct {
	Kind EventKind
	// Container is the id of the one that it is about, and Labels are its labels, which
	// Disconnected lacks.
	Container string
	Labels    map[string]string
}
