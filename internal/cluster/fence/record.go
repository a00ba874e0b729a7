package fence

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sys/unix"
)

// Files are the files through which fence and service talk, in a folder in memory: they must not
// wait for a disk.
type Files struct{ Base string } // such as /run/daycare-sandbox/sandboxd.sock

// Record is what the fence tells the service. Times are measured from the host's start.
type Record struct {
	Boot string `json:"boot"`
	// Fence is the process id of the fence.
	Fence int `json:"fence"`
	// Lease is the host's lease; 0 for none.
	Lease int64 `json:"lease"`
	// Sent is when the renewal that was answered last was sent.
	Sent time.Duration `json:"sent"`
	// Taken is when the lease was taken.
	Taken time.Duration `json:"taken"`
	// Fenced says that nothing may run.
	Fenced bool `json:"fenced"`
	// Count grows with each lease and each fencing, and so tells them apart; Fences counts the
	// fencings.
	Count  int `json:"count"`
	Fences int `json:"fences"`
}

// Deadline returns when everything that runs is killed.
func (r Record) Deadline() time.Duration { return r.Sent + Limit }

// Beat is what the service tells the fence, at least four times a second.
type Beat struct {
	Boot string `json:"boot"`
	// At is when a service that takes calls wrote last. One that is starting leaves it as it was.
	At time.Duration `json:"at"`
	// Alive is when this was written, by a service that may still be starting.
	Alive time.Duration `json:"alive"`
	PID   int           `json:"pid"`
	// Started is the process's start time from the kernel: another process may have its number by
	// now.
	Started string `json:"started"`
	// Unfit says why the service cannot keep its users; empty if it can.
	Unfit string `json:"unfit,omitempty"`
	// Quiet is the Record.Count for which nothing is done for users any more.
	Quiet int `json:"quiet"`
	// Starting is how many containers Docker is starting for the service.
	Starting int `json:"starting"`
}

// now returns the time since the host's start, which also passes while the host sleeps, and which
// nobody can set.
func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // the kernel has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// hold keeps other fences away from this host until release is called or this process ends. It
// fails only if there is another fence: a fence that cannot write here still kills what runs.
func (f Files) hold(log zerolog.Logger) (release func(), err error) {
	name := f.Base + ".fence"
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		log.Error().Err(err).Msg("cannot check whether this host has another fence")
		return func() {}, nil
	}
	release = func() { _ = lock.Close() }
	switch err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		release()
		return nil, fmt.Errorf(
			"cannot fence this host: another sandboxd fence does so already (process %d, which holds %s): end it first",
			f.Read().Fence, name)
	case err != nil:
		log.Error().Err(err).Msg("cannot check whether this host has another fence")
	}
	return release, nil
}

// kills is the lock on killing by the record. Guards share it (unix.LOCK_SH) while they look at the
// record and kill, and a fence takes it alone (unix.LOCK_EX) before it opens the group. The error
// is unix.EWOULDBLOCK if another process has it; it never waits.
func (f Files) kills(how int) (release func(), err error) {
	lock, err := os.OpenFile(f.Base+".kills", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), how|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return func() { _ = lock.Close() }, nil
}

// Read returns the record; if none can be read, or it is of an earlier boot, an empty one of this
// boot.
func (f Files) Read() Record {
	var r Record
	if !read(f.Base+".lease", &r) || r.Boot != bootID() {
		return Record{Boot: bootID(), Count: int(now() / time.Millisecond)} // so that Count grows even if the record is lost
	}
	return r
}

// Write replaces the record.
func (f Files) Write(r Record) error { return write(f.Base+".lease", r) }

// Beat returns the service's last beat since the host's start.
func (f Files) Beat(boot string) (b Beat, found bool) {
	return b, read(f.Base+".beat", &b) && b.Boot == boot
}

// WriteBeat replaces the beat.
func (f Files) WriteBeat(b Beat) error { return write(f.Base+".beat", b) }

func read(name string, into any) bool {
	text, err := os.ReadFile(name)
	return err == nil && json.Unmarshal(text, into) == nil
}

// write replaces a file atomically. It does not sync it: after a power cut the file is not needed.
func write(name string, what any) error {
	text, err := json.Marshal(what)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// startOf returns when a process has started; empty if there is none.
func startOf(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text[strings.LastIndexByte(string(text), ')')+1:]), " ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

func (b Beat) lives() bool { return b.PID != 0 && b.Started != "" && startOf(b.PID) == b.Started }

// kill kills the service and waits up to a second until it has ended.
func (b Beat) kill() {
	fd, err := unix.PidfdOpen(b.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if b.lives() {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	for end := now() + time.Second; b.lives() && now() < end; {
		time.Sleep(5 * time.Millisecond)
	}
}

var errLeaseGone = errors.New("the lease has ended")

func leaseGone(err error) bool {
	return errors.Is(err, errLeaseGone) || errors.Is(err, rpctypes.ErrLeaseNotFound)
}
