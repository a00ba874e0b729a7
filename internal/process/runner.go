package process

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Runner is what runs processes. Each start of one is a fresh container, which needs no service. It is
// used by many goroutines at once, for one process by one of them, save that Stop may come again while
// it is under way.
type Runner interface {
	// Start makes the process's container and starts its command. It blocks until the command runs. An
	// error means that nothing is left of it.
	Start(ctx context.Context, r Record, secrets map[string]string) (Instance, error)
	// Instances are the containers of all processes there are, running or ended.
	Instances(ctx context.Context) ([]Instance, error)
	// Stop sends the signal to the whole process and kills what is left after the grace. It blocks until
	// it has ended, and is content when it has already, or is gone.
	Stop(ctx context.Context, i Instance, signal syscall.Signal, grace time.Duration) error
	// Pause has nothing of a running instance run until Resume, of which both are content when it is so. The class
	// errdefs.ErrNotFound says that it has ended.
	Pause(ctx context.Context, i Instance) error
	Resume(ctx context.Context, i Instance) error
	// Remove takes an ended or running instance away. It is content when it is gone already.
	Remove(ctx context.Context, i Instance) error
	// Exit says how an ended instance ended. The class errdefs.ErrNotFound says that it is gone; after
	// any other error it is asked again later.
	Exit(ctx context.Context, i Instance) (Exit, error)
	// Readiness is what was found last of a process that runs and has a Ready.
	Readiness(r Record) Readiness
	// Dial connects to a TCP port of an instance's own loopback.
	Dial(ctx context.Context, i Instance, port int) (Conn, error)
}

// Instance is a container of a process.
type Instance struct {
	Process   string
	User      string
	Container string    // its id
	Started   time.Time // as Docker says
	PID       int       // of its first program on Docker's host; 0 when it does not run
	Running   bool
	// Applied is what the container was made from, a JSON document that is kept in sandbox.json. Start
	// sets it; nil keeps nothing.
	Applied []byte
}

func (i Instance) identity() Identity { return Identity{i.Container, i.Started} }

// Exit is how an instance ended.
type Exit struct {
	Code   int            // when Signal is 0
	Signal syscall.Signal // that ended it, or 0
	OOM    bool           // it had no memory left
	At     time.Time      // zero when nobody knows
	Lost   uint64         // bytes of output that could not be written
}

// Clock is where time comes from.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f after d in a goroutine of its own, unless stop comes first. stop reports whether it
	// did.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// SystemClock is the time of day.
type SystemClock struct{}

// Now is the current time.
func (SystemClock) Now() time.Time { return time.Now() }

// AfterFunc is time.AfterFunc.
func (SystemClock) AfterFunc(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }

// HostBootID is a text that is another one after each start of this host.
func HostBootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot tell one start of the host from another: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
