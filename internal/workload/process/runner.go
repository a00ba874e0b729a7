package process

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/internal/plan"
)

// Runner has the containers of processes, and their folders. Each start of a process is a fresh
// container, which does not need the service. Many goroutines use it at once, but for any one
// process only one at a time, apart from Readiness, Dial, and a Stop that comes during another one.
type Runner interface {
	// Start creates the process's container and starts its command. It blocks until the command
	// runs. After an error nothing is left of it. A first start may have been planned already; a
	// nil plan is made by the Runner.
	Start(ctx context.Context, r Record, secrets map[string]string, planned *plan.Plan) (Instance,
		error)
	// Instances returns the containers of all processes, running or ended.
	Instances(ctx context.Context) ([]Instance, error)
	// Stop sends the signal to the whole process and kills what is left after the grace. It blocks
	// until the process has ended, and returns nil if it already has, or is gone.
	Stop(ctx context.Context, i Instance, signal syscall.Signal, grace time.Duration) error
	// Pause keeps everything in a running instance from running until Resume. Both return nil if
	// that is already so. The class errdefs.ErrNotFound says that the instance has ended.
	Pause(ctx context.Context, i Instance) error
	Resume(ctx context.Context, i Instance) error
	// Remove removes an instance, ended or running. It returns nil if the instance is gone already.
	Remove(ctx context.Context, i Instance) error
	// Exit returns how an ended instance ended. The class errdefs.ErrNotFound says that it is gone;
	// after any other error Exit is called again later.
	Exit(ctx context.Context, i Instance) (Exit, error)
	// Readiness returns what was last found out about a running process that has a Ready.
	Readiness(r Record) Readiness
	// Dial connects to a TCP port of an instance's own loopback.
	Dial(ctx context.Context, i Instance, port int) (Conn, error)
	// Ports passes on at which TCP ports of an instance's own loopback it listens, at once and with
	// each change, until each returns false, ctx ends or the instance does. One that runs inside
	// its sandbox cannot be asked.
	Ports(ctx context.Context, i Instance, each func([]int) bool) error
	// OpenFiles returns the names, below the home, of databases and locks that programs of an
	// instance have open for writing, as its sandbox sees them. The tenant can make it return any.
	OpenFiles(ctx context.Context, i Instance, sandboxID string) ([]string, error)
	// Dir returns the directory on the host that holds the log of one process, and nothing else.
	// The process may write to that directory, but not to those above it.
	Dir(r Record) string
	// DropUnread removes what a start had prepared in the directories of a user's processes, or of
	// all if user is empty, and was not read, as when the service was killed: it may hold secrets.
	DropUnread(user string) error
	// Discard removes that directory when the process is removed; what a tenant has put into it may
	// be deleted later.
	Discard(r Record) error
}

// Instance is a container of a process.
type Instance struct {
	Process   string
	User      string
	Container string    // its id
	Started   time.Time // as Docker says
	PID       int       // of its first program on Docker's host; 0 when it does not run
	Running   bool
	// Applied is what the container was made from, a JSON document that is kept in sandbox.json.
	// Start sets it; nil keeps nothing.
	Applied []byte
	// Notice says what Start had to do that changes what the process finds; empty for nothing.
	Notice string
	// Held is what its container has (plan.Plan.Held). Start sets it.
	Held string
}

// InsideOf returns the name of a run inside a container that is its sandbox's, for
// Instance.Container.
func InsideOf(container, process string) string { return container + "/" + process }

// Inside returns the sandbox's container in which it runs, and whether there is one: nothing is
// left of such a run when it has ended.
func (i Instance) Inside() (container string, is bool) {
	return strings.CutSuffix(i.Container, "/"+i.Process)
}

func (i Instance) identity() Identity { return Identity{i.Container, i.Started} }

// Exit is how an instance ended.
type Exit struct {
	Code   int            // when Signal is 0
	Signal syscall.Signal // that ended it, or 0
	OOM    bool           // it ran out of memory
	Reason string         // why the service has ended it by itself; empty if it has not
	At     time.Time      // zero if it is not known
	Lost   uint64         // bytes of output that could not be written
}

// Clock is the source of time.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f after d in a goroutine of its own, unless the Timer is stopped first.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is what a *time.Timer of AfterFunc is.
type Timer interface {
	// Stop reports whether it prevented the call.
	Stop() bool
}

// SystemClock is the clock of the system.
type SystemClock struct{}

// Now returns the current time.
func (SystemClock) Now() time.Time { return time.Now() }

// AfterFunc is time.AfterFunc.
func (SystemClock) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// HostBootID returns a text that differs after each boot of this host.
func HostBootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot tell one start of the host from another: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
