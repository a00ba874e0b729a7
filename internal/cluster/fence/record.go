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

// Files are how fence and service tell each other, in a folder in memory: it must not wait for a disk.
type Files struct{ Base string } // such as /run/daycare-sandbox/sandboxd.sock

// Record is what the fence says. Times are since the host has started.
type Record struct {
	Boot string `json:"boot"`
	// Fence is the process of whoever says it.
	Fence int `json:"fence"`
	// Lease is the host's; 0 for none.
	Lease int64 `json:"lease"`
	// Sent is when the renewal was sent that was answered last.
	Sent time.Duration `json:"sent"`
	// Taken is when the lease was.
	Taken time.Duration `json:"taken"`
	// Fenced says that nothing may run.
	Fenced bool `json:"fenced"`
	// Count tells the leases and the fencings from each other; Fences counts the fencings.
	Count  int `json:"count"`
	Fences int `json:"fences"`
}

// Deadline is when all that runs is killed.
func (r Record) Deadline() time.Duration { return r.Sent + Limit }

// Beat is what the service says, twice a second.
type Beat struct {
	Boot string        `json:"boot"`
	At   time.Duration `json:"at"`
	PID  int           `json:"pid"`
	// Started is when that process has started, as the kernel says: its number may be another's by now.
	Started string `json:"started"`
	// Unfit says why it cannot keep its users; empty for all is well.
	Unfit string `json:"unfit,omitempty"`
	// Quiet is the Record.Count for which nothing is done for users any more.
	Quiet int `json:"quiet"`
	// Starting is how many containers Docker is starting for it.
	Starting int `json:"starting"`
}

// now is the time since the host has started, which goes on while it sleeps and which nobody sets.
func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // the kernel has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// hold keeps other fences of this host away until release, or the end of this process. It fails only where there is another:
// a fence that cannot write here kills what runs all the same.
func (f Files) hold(log zerolog.Logger) (release func(), err error) {
	name := f.Base + ".fence"
	lock, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		log.Error().Err(err).Msg("cannot see whether this host has another fence")
		return func() {}, nil
	}
	release = func() { _ = lock.Close() }
	switch err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		release()
		return nil, fmt.Errorf("cannot fence this host: another sandboxd fence does (process %d, which has %s): end that one first", f.Read().Fence, name)
	case err != nil:
		log.Error().Err(err).Msg("cannot see whether this host has another fence")
	}
	return release, nil
}

// Read returns the record; an empty one, of a boot that is this one, when there is none that can be used.
func (f Files) Read() Record {
	var r Record
	if !read(f.Base+".lease", &r) || r.Boot != bootID() {
		return Record{Boot: bootID(), Count: int(now() / time.Millisecond)} // it goes on growing if the record is lost
	}
	return r
}

// Write replaces the record.
func (f Files) Write(r Record) error { return write(f.Base+".lease", r) }

// Beat returns what the service has said last since the host has started.
func (f Files) Beat(boot string) (b Beat, found bool) {
	return b, read(f.Base+".beat", &b) && b.Boot == boot
}

// WriteBeat replaces it.
func (f Files) WriteBeat(b Beat) error { return write(f.Base+".beat", b) }

func read(name string, into any) bool {
	text, err := os.ReadFile(name)
	return err == nil && json.Unmarshal(text, into) == nil
}

// write replaces a file at once. It is not synced: after a power cut nothing of it is wanted.
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

// startOf is when a process has started; empty when there is none.
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

// kill ends the service and waits until it has ended, for a second.
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
