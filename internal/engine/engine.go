// Package engine is what runs containers: Docker, for now. It has verbs (Create, Start, Exec,
// Pause, …) and events, and keeps no state of this service's: what a label means, whose a
// container is, and when it is to go is decided by its caller.
//
// # The interface
//
// [Engine] is all that a caller needs. [Docker] implements it, and package enginetest, for tests.
// Its types are small structs, or runtime-spec's where these say what is meant: specs.Process
// is what runs, specs.Mount what it sees, specs.LinuxResources what it may use. No type of Docker's
// is part of it, so an engine without Docker, on an OCI runtime alone, can implement it as well.
//
// Besides the verbs, [Connect] says how the Docker daemon is reached, and [Docker.Info] what it
// says of itself. Package images uses its client for images, and nobody else does.
//
// # What every container has
//
// An engine gives each container namespaces of its own (mounts, processes, IPC, control groups,
// host name), no device and no published port, never restarts it, and keeps no log of its output.
// A Spec cannot say otherwise.
//
// # What Docker needs
//
// Docker is asked for one thing and does another while it is busy, and this package knows how:
//
//   - It holds a container's lock while it waits for a runtime. Starting a program in a container
//     can be stopped from inside, and then no signal gets through: Signal gives that start up.
//   - A container that is removed before Docker has seen its end leaves its shim behind for good.
//     Remove waits for the end, and ends the shim if it was not seen (shims.go).
//   - A second removal is refused while one goes on; Remove asks again, because nobody says when a
//     removal has failed. Docker 20.10 that gets two at the same moment may lose the container's
//     name: callers ask for one at a time.
//   - Pausing fails while processes appear in a version 1 control group; Pause tries again. A
//     paused container takes no kill under gVisor, so Remove resumes it first.
//   - Docker goes on when its caller leaves. A verb whose effect must not come later than its
//     return says that it does not leave.
//
// # Errors
//
// Errors have classes of github.com/containerd/errdefs. NotFound always means that there is no such
// container, network or volume. Explain turns an error into text for people; what it returns has no
// class, because these classes are not those of this service's answers.
package engine

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/internal/cgroup"
)

// Engine runs containers. It is safe for concurrent use. Every id is one that Create or List has
// returned; Inspect also takes a name.
type Engine interface {
	Containers
	Programs
	Networks
	Volumes

	// Events subscribes to what happens, from before it returns on. It blocks until the engine has
	// answered. When the subscription fails or ends, the error is sent, once, and nothing else is;
	// so it is also when ctx ends.
	Events(ctx context.Context) (<-chan Event, <-chan error)
	// ForgottenShims finds the shims of containers that are gone, among those for which ours
	// returns true. If there are any it takes some seconds, to make sure. Engines whose containers
	// need no shim return none.
	ForgottenShims(ctx context.Context, ours func(Shim) bool) ([]Shim, error)
	// Explain turns an error of the engine into one for people, which says what they can do.
	Explain(err error) error
	// Close releases the connection to the engine. Containers stay.
	Close() error
}

// Containers are the verbs of a container's life.
type Containers interface {
	// Create makes a container, and the volumes of its mounts that do not exist. It does not start
	// it. The error is of class Conflict if the name is taken. The engine may go on after ctx.
	Create(ctx context.Context, s Spec) (id string, err error)
	// Start starts a container that was made. The error is NotFound if it or its network was
	// removed, Conflict if it is being removed, and it may match ErrAddressTaken or ErrRuntimeDied.
	// The engine may go on after ctx: Remove then makes sure that nothing runs.
	Start(ctx context.Context, id string) error
	// Signal sends a signal to a container's first process. Starts of programs that hold it up are
	// given up after some seconds. The error is NotFound or Conflict if the container is gone, or
	// does not run. Under gVisor a paused container gets it when it is resumed.
	Signal(ctx context.Context, id string, number syscall.Signal) error
	// Wait returns a channel that gets nil, once, when a container does not run, or the error of
	// waiting: NotFound if it is gone. It does not block. Waiting ends with ctx.
	Wait(ctx context.Context, id string) <-chan error
	// Pause stops all processes of a container until Resume. It succeeds if the container does not
	// run, is gone or is paused already. It blocks for up to half a minute, whatever ctx does, so
	// that the container is not paused later.
	Pause(ctx context.Context, id string) error
	// Resume has a paused container go on. It succeeds if it is gone or not paused. One that stays
	// paused is ended, and the error says so; without an answer of the engine's nothing is.
	Resume(ctx context.Context, id string) error
	// Remove ends all that runs in a container, paused or not, and removes it. It succeeds if it is
	// gone. It blocks until that is done, for half a minute at most. Callers ask for one removal of
	// a container at a time.
	Remove(ctx context.Context, id string) error
	// Rename gives a container another name. The error is Conflict if another one has that.
	Rename(ctx context.Context, id, name string) error
	// Inspect asks about one container, by its id or name. The error is NotFound if there is none.
	Inspect(ctx context.Context, id string) (Container, error)
	// List returns the containers with all of the labels, each "key" or "key=value". Without
	// stopped, only those that run, paused ones among them. Of each it tells what Container says
	// that List does.
	List(ctx context.Context, stopped bool, labels ...string) ([]Container, error)
	// Usage returns what a running container uses now; its Memory is without Cache.
	Usage(ctx context.Context, id string) (cgroup.Usage, error)
}

// Programs are the verbs about what runs in a container.
type Programs interface {
	// Attach opens stdin, stdout and stderr of the first process of a container that is about to
	// be started. The process's stdin ends with the stream.
	Attach(ctx context.Context, id string) (Stream, error)
	// Exec starts a program in a running container and opens its stdin, stdout and stderr. ctx
	// bounds the start alone. The engine may fail to start it after it has returned: then Docker
	// writes the reason to stdout, and the stream ends.
	Exec(ctx context.Context, id string, p specs.Process) (Stream, error)
	// Run runs a program in a running container to its end. ctx bounds that; the program may go on
	// when it has ended. With an error, Output has what came until then.
	Run(ctx context.Context, id string, p specs.Process) (Output, error)
	// AbortExecs ends the starts of programs that a container holds up. Programs that run go on.
	AbortExecs(id string) error
}

// Networks are the verbs about bridge networks.
type Networks interface {
	// FindNetwork returns the network of a name. Its Fault compares it with one that MakeNetwork
	// makes with that bridge. The error is NotFound if there is none.
	FindNetwork(ctx context.Context, name, bridge string) (Network, error)
	// MakeNetwork makes a network: its containers do not reach each other, have no IPv6, and are
	// masqueraded. The error is Conflict if there is one of that name, and matches ErrSubnetTaken
	// if another network has addresses of it.
	MakeNetwork(ctx context.Context, n Network) error
	// RemoveNetwork removes the network of a name or id. The error is NotFound if there is none,
	// and PermissionDenied while containers are on it.
	RemoveNetwork(ctx context.Context, name string) error
	// ListNetworks returns the networks with a label, "key" or "key=value": their ID, Name and
	// Labels.
	ListNetworks(ctx context.Context, label string) ([]Network, error)
}

// Volumes are the verbs about volumes. Create makes them, with the containers that mount them.
type Volumes interface {
	// FindVolume returns the volume of a name, with its Dir. The error is NotFound if there is
	// none.
	FindVolume(ctx context.Context, name string) (Volume, error)
	// RemoveVolume removes a volume with what is in it. The error is NotFound if there is none, and
	// Conflict while a container has it, whether it runs or not, or had it a moment ago.
	RemoveVolume(ctx context.Context, name string) error
	// ListVolumes returns the volumes with a label, "key" or "key=value": their Name and Labels.
	// With unused, only those that no container has.
	ListVolumes(ctx context.Context, label string, unused bool) ([]Volume, error)
}

// Errors of Start and MakeNetwork that a caller can do something about.
var (
	// ErrAddressTaken means that something else on the network has the container's address, or that
	// the runtime could not connect it there. Another address, asked for anew, may do.
	ErrAddressTaken = errors.New("the address is taken")
	// ErrRuntimeDied means that the runtime's own process ended before anything of the container's
	// programs had begun. A new container may start.
	ErrRuntimeDied = errors.New("the runtime has ended")
	// ErrSubnetTaken means that another network has some of the subnet.
	ErrSubnetTaken = errors.New("the subnet is taken")
)

// A Stream is a process's stdin, to write to, and its stdout, to read from. Reading is for one
// goroutine at a time, writing for another. Close ends both. Its deadlines are those of net.Conn.
type Stream interface {
	net.Conn
	// Stderr returns the beginning of what has come on stderr so far, 4 KiB at most, without the
	// space around it. What comes on stderr is taken in by Read.
	Stderr() string
}

// Output is what a program has written, and its exit status.
type Output struct {
	Stdout, Stderr string
	ExitCode       int
}

// kind marks an error with one of the errors above, and leaves its text as it is.
type kind struct {
	error
	is error
}

func (k kind) Unwrap() []error { return []error{k.error, k.is} }
