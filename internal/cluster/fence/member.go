package fence

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
)

// Member is the service's side: it watches the deadline, and stops all work for users when it has
// passed. It is safe for concurrent use.
type Member struct {
	files Files
	group Group
	log   zerolog.Logger
	pid   int // of the service, which the fence kills if it does not stop

	deadline atomic.Int64 // of the lease; 0 for none
	record   atomic.Pointer[Record]
	unfit    atomic.Pointer[string]
	serving  atomic.Bool
}

// NewMember returns the Member of a service whose fence has the same files and group.
func NewMember(files Files, group Group, log zerolog.Logger) *Member {
	m := &Member{files: files, group: group, log: log, pid: os.Getpid()}
	m.look()
	return m
}

// Left returns how long running commands may go on; 0 or less for not at all.
func (m *Member) Left() time.Duration {
	deadline := m.deadline.Load()
	if deadline == 0 {
		return 0
	}
	return time.Duration(deadline) - now()
}

// MayStart returns nil while this host may start something for users.
func (m *Member) MayStart() error {
	if m.Left() > 0 {
		return nil
	}
	return fmt.Errorf(
		"this host has no lease in the cluster now, so it runs nothing: ask another host, or see that sandboxd fence runs here and reaches etcd: %w",
		cerrdefs.ErrUnavailable)
}

// Record returns what the fence wrote last.
func (m *Member) Record() Record { return *m.record.Load() }

// SetUnfit tells the fence why the host cannot keep its users; an empty text means that it can.
func (m *Member) SetUnfit(why string) { m.unfit.Store(&why) }

// SetServing says that the service takes calls from now on. Until then it joins with no lease, and
// does not count as back.
func (m *Member) SetServing() { m.serving.Store(true) }

func (m *Member) look() Record {
	r := m.files.Read()
	m.record.Store(&r)
	deadline := int64(r.Deadline())
	if r.Lease == 0 || r.Fenced {
		deadline = 0
	}
	m.deadline.Store(deadline)
	return r
}

const beatEvery = 250 * time.Millisecond

// Service is what has a lease. Its methods are called one at a time.
type Service interface {
	// Fenced is called when the lease has passed, before anything is ended.
	Fenced()
	// Joined is called when there is a new lease and the service takes calls.
	Joined(lease int64)
	// Stop ends all work for users, and returns when the work or ctx has ended.
	Stop(ctx context.Context)
	// Starting returns how many containers Docker is starting.
	Starting() int
}

// Run follows the fence until ctx ends. It writes beats, so that the fence knows of it, and kills
// everything at the deadline, too: the fence itself may be dead.
func (m *Member) Run(ctx context.Context, service Service) {
	beat := Beat{Boot: bootID(), PID: m.pid, Started: startOf(m.pid)}
	if before, found := m.files.Beat(beat.Boot); found {
		beat.At = before.At
	}
	var joined int64
	stopped := true
	for ctx.Err() == nil {
		r, serving := m.look(), m.serving.Load()
		switch {
		case m.Left() > 0:
			stopped = false
			if serving && r.Lease != joined {
				joined = r.Lease
				service.Joined(r.Lease)
			}
		case !stopped:
			service.Fenced()
			if err := m.group.KillAll(killLimit); err != nil {
				m.log.Error().Err(err).Msg("cannot kill all that runs")
			}
			limited, cancel := context.WithTimeout(ctx, ackLimit)
			service.Stop(limited)
			stopped = limited.Err() == nil
			cancel()
			joined = 0
			fallthrough
		default:
			if r.Fenced && stopped {
				beat.Quiet = r.Count
			}
			if !r.Fenced && stopped { // the fence is dead, and only another fence opens the group
				_ = m.group.KillAll(killLimit)
			}
		}
		beat.Starting = service.Starting()
		if beat.Alive = now(); serving {
			beat.At = beat.Alive
		}
		if why := m.unfit.Load(); why != nil {
			beat.Unfit = *why
		}
		if err := m.files.WriteBeat(beat); err != nil {
			m.log.Error().Err(err).Msg("cannot tell the fence that the service is there")
		}
		pause := beatEvery
		if left := m.Left(); left > 0 {
			pause = min(pause, left)
		}
		wait(ctx, pause)
	}
}
