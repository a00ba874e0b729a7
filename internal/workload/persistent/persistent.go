// Package persistent manages the persistent sandboxes. Each has one container. Its commands, and
// what they leave behind, go on when their call or the service ends. There are two kinds:
//
//   - A client's is a user with a home of its own, from Create to Kill or to its deadline. It
//     belongs to the caller's token by which it was created; for everybody else it does not exist.
//     The package registers it and has its container planned as the facade does for a call, below
//     which it is: file calls go to the facade, under the sandbox's id.
//   - A registered one is a sandbox of a user, whose registration says that it is persistent: its
//     container has all that the sandbox holds. The first call makes it, and it goes with its
//     registration; it has no deadline. Whatever it has lost, it goes on from its home.
//
// persistent.go finds sandboxes, create.go creates those of clients, registered.go has what differs
// for registered ones, exec.go runs a call's command there, and sandbox.go operates on one. record.go
// defines the record, on disk or with the other hosts of a cluster: shared.go has what differs
// there. deadline.go keeps deadlines. ask.go talks to the container's first process (package
// control), commands.go and reader.go do so about commands, and counts.go counts those.
package persistent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Config is what Sandboxes need. All fields but Shared, Pool, Quotas and Events must be set.
type Config struct {
	// Dir holds the records. It is created if missing.
	Dir string
	// Shared keeps the records instead of Dir, for several hosts.
	Shared Shared
	// Planner registers the sandboxes and decides what their containers are, once for each.
	Planner  *plan.Planner
	Executor Executor
	Places   Places
	Pool     Pool
	Owners   Owners
	// Processes are those inside registered sandboxes, and those that other callers have started in
	// the homes of clients'.
	Processes Processes
	Quotas    *quota.Ledger
	Events    *events.Stream
	// Trash takes what is left of sandboxes.
	Trash *hostfs.Trash
	Log   zerolog.Logger

	recountEvery time.Duration
}

// Owners knows the present tokens, whose bounds apply to what was made by them. *access.Tokens
// implements it.
type Owners interface {
	// Owner returns the token of a name, and false if there is none any more. Then nobody reaches
	// its sandboxes, and they end at their deadlines.
	Owner(name string) (quota.Token, bool)
}

// Places are those that Quotas have for containers. *warm.Runner implements it.
type Places interface {
	// TakePlace takes one until give is called. If there is none, an idle container makes room.
	TakePlace(context.Context, quota.Account) (give func(), err error)
}

// Pool keeps containers ready. It is an interface, because what keeps them is beside this package.
type Pool interface {
	// BindPersistent gives a user who has no folder yet one of the pool's homes, with the container
	// that has it: whoever starts what is planned for that user finds these. Nothing depends on
	// whether there is one.
	BindPersistent(context.Context, plan.Decided, plan.Shape, quota.Token)
}

// Processes follow what becomes of a sandbox. *process.Manager implements it.
type Processes interface {
	// FollowPause resumes the processes of a sandbox that is gone, and with it its pause.
	FollowPause(ctx context.Context, sandboxID string) error
	// Ended says that a process may have ended. It does not block.
	Ended(id string)
}

// Executor manages the containers. *dockerexec.Executor implements it.
type Executor interface {
	StartPersistent(context.Context, dockerexec.Spec, quota.Token) (dockerexec.ProcessContainer,
		error)
	Persistent(context.Context) ([]dockerexec.ProcessContainer, error)
	PersistentRuns(id string) bool
	AskPersistent(ctx context.Context, id string) (control.Stream, error)
	Ahead() bool
	PauseDetached(ctx context.Context, id string) error
	ResumeDetached(ctx context.Context, id string) error
	RemoveProcess(ctx context.Context, id string) error
	DialProcess(ctx context.Context, id string, port int) (session.PortConn, error)
	SetEgress(ctx context.Context, id string, reach dockerexec.Egress) error
	Usage(ctx context.Context, id string) (cgroup.Usage, error)
	PersistentEnd(ctx context.Context, id string) *dockerexec.Exhausted
	PersistentKilled(id string) *dockerexec.Exhausted
}

// Sandboxes are the persistent sandboxes of one service. They are safe for concurrent use.
type Sandboxes struct {
	cfg Config

	life   context.Context // ends with Shutdown
	cancel context.CancelFunc
	work   sync.WaitGroup
	wake   chan struct{} // holds a value when a deadline has changed
	ends   *fair.Pool    // of those that are ended at a time, by owner

	freezeAfter atomic.Int64 // a time.Duration

	again   atomic.Bool // the containers are to be looked for again, as something failed
	looking atomic.Bool // look runs

	// sought counts what makes this host look for the containers; found is its value when the last
	// complete look began. While they are equal, a sandbox with no container known has none.
	sought, found atomic.Int64

	mu      sync.Mutex
	all     map[string]*entry
	leaving map[string]bool // ids of sandboxes of which only the seat is left
	giving  map[string]bool // those of them whose seat is being given up
	// processes are the durable ones that are followed, by id.
	processes map[string]bool
}

// entry is one sandbox, and what is done to one. Sandboxes has what is done to all. These are its
// flags, of which any may be set in any place, with any of the others, but for what is said here:
//
//   - gone is as record.gone says: Open, Adopt, Apply and Release set it. Besides, it is set while
//     Create runs, and by a removal, even one that cannot be recorded.
//   - ending is set by beginEnd, which holds changing, until the end has succeeded or failed.
//   - counted is set by create and begin, as nothing runs then, by uncount, and by recountOne. Open,
//     Adopt (if place is here), unsure and a recount that fails clear it.
//   - counting is set by recount until recountOne is done.
//   - removed is set by Apply, in a cluster, never if place is elsewhere, and by Of while there is no
//     record. Release forgets the entry then. A new record clears it.
type entry struct {
	of *Sandboxes
	id string
	// changing is held while the sandbox is paused, resumed or removed, and while its record is
	// written. Nobody else pauses or resumes its container.
	changing sync.Mutex

	mu        sync.Mutex
	record    record
	container string           // Docker's id; empty while it is not known
	gone      bool             // for callers: it is being removed, or not created yet
	usage     cgroup.Usage     // as it was asked for last
	disk      diskUsage        // with a lock of its own
	give      func()           // gives back its place in the quotas; nil if it has none
	commands  map[int]*counted // by pid; nil where none is counted
	counted   bool             // commands has all that run
	counting  bool             // a recount is under way
	ending    bool             // it is being ended, as it was due
	retry     time.Time        // not to be ended again before then, as that has failed

	learning    sync.Mutex            // held while it is found out why a container ended
	exhausted   *dockerexec.Exhausted // what has ended the container exhaustedIn
	exhaustedIn string

	place place
	// Of a registered sandbox: calls is how many use it, and used when the last one did. check says
	// that it may not be as its registration, or the settings, say now.
	calls int
	used  time.Time
	// unfollowed are the processes that were found while it was paused.
	unfollowed map[string]bool
	check      bool

	// For a cluster: removed says that there is no record while this host holds the sandbox.
	// released is the epoch of the record whose container Release has removed, and revision is the
	// record's.
	removed  bool
	released int64
	revision int64
}

// place is what this host has of a sandbox.
type place int

const (
	// elsewhere is that of a sandbox of a cluster which another host holds, or none. It has no
	// container here, and no commands that count.
	elsewhere place = iota
	// here is that of one that this host holds, as it always does without a cluster. Its container
	// is known or is looked for; once all are found, one without a container has ended.
	here
	// homeOnly is that of one that this host holds and that goes on from its home when it is used:
	// its container ran out of memory or, for a registered one, is lost or not made yet; or this
	// host has come to hold it. A container that is left of it is removed then.
	homeOnly
)

// recorded returns the current record. Nobody changes what its maps hold.
func (e *entry) recorded() record {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.record
}

// Open reads the records. A damaged one is set aside, and Start removes its container.
func Open(cfg Config) (*Sandboxes, error) {
	cfg.recountEvery = cmp.Or(cfg.recountEvery, recountEvery)
	s := &Sandboxes{cfg: cfg, wake: make(chan struct{}, 1), ends: fair.NewPool(endsAtOnce, 0),
		all: map[string]*entry{}, leaving: map[string]bool{}, giving: map[string]bool{},
		processes: map[string]bool{}}
	s.sought.Store(1)
	s.life, s.cancel = context.WithCancel(context.Background())
	if cfg.Shared != nil {
		return s, nil
	}
	records, err := readRecords(s.records(), cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("cannot read the records of persistent sandboxes: %w", err)
	}
	for _, r := range records {
		e := &entry{of: s, id: r.ID, record: r, gone: r.gone(), commands: map[int]*counted{},
			place: here, check: true}
		if r.Lost != nil {
			e.place = homeOnly
		}
		e.hold()
		s.all[r.ID] = e
	}
	return s, nil
}

// Start finds the sandboxes' containers, removes those that belong to no sandbox, and begins to
// keep deadlines. The Executor has to have started.
func (s *Sandboxes) Start(ctx context.Context) {
	if err := s.find(ctx); err != nil {
		s.cfg.Log.Warn().Err(err).Msg(
			"cannot look for the containers of persistent sandboxes yet; trying again")
	}
	s.work.Go(s.keepDeadlines)
	s.work.Go(s.keepCounts)
}

// Shutdown ends neither sandboxes nor their commands.
func (s *Sandboxes) Shutdown() {
	s.cancel()
	s.work.Wait()
}

// find finds the containers, and removes those without a record. What fails for one is tried again,
// and does not affect the others.
func (s *Sandboxes) find(ctx context.Context) error {
	s.mu.Lock()
	sandboxes := len(s.all)
	s.mu.Unlock()
	sought := s.sought.Load() // a sandbox that is adopted from here on may be missed
	s.again.Store(false)      // what sets it from here on is looked for again
	found, err := s.cfg.Executor.Persistent(ctx)
	if err != nil {
		s.again.Store(true)
		return err
	}
	for _, c := range found {
		e, known := s.whose(c)
		if !known {
			s.again.Store(true)
			continue
		}
		if e == nil {
			s.cfg.Log.Warn().Str("sandbox", c.Spec.Persistent).
				Msg("removing a container that belongs to no sandbox of this host")
			if err := s.cfg.Executor.RemoveProcess(ctx, c.ID); err != nil {
				s.again.Store(true)
				s.cfg.Log.Error().Err(err).Str("sandbox", c.Spec.Persistent).
					Msg("cannot remove a container that belongs to no sandbox of this host; trying again")
			}
			continue
		}
		e.mu.Lock()
		if e.container == "" {
			e.container = c.ID
		}
		paused := e.record.Paused && c.Running
		e.mu.Unlock()
		if paused && !e.pauseAgain(c.ID) {
			s.again.Store(true)
			s.rouse()
		}
	}
	if s.found.Swap(sought) != sought {
		s.cfg.Log.Info().Int("sandboxes", sandboxes).Int("containers", len(found)).
			Msg("found persistent sandboxes and their containers")
	}
	return nil
}

// allFound reports whether a sandbox with no container known has none.
func (s *Sandboxes) allFound() bool { return s.found.Load() == s.sought.Load() }

// pauseAgain pauses the container of a sandbox that is recorded as paused, and reports whether that
// is done. It leaves a sandbox alone that is being changed: whoever resumes it has not recorded
// that yet.
func (e *entry) pauseAgain(container string) bool {
	if !e.changing.TryLock() {
		return false
	}
	defer e.changing.Unlock()
	e.mu.Lock()
	paused := e.record.Paused && e.container == container
	e.mu.Unlock()
	if !paused {
		return true
	}
	ctx, cancel := context.WithTimeout(e.of.life, removalLimit)
	defer cancel()
	err := e.of.cfg.Executor.PauseDetached(ctx, container)
	if err != nil && (!cerrdefs.IsNotFound(err) || e.of.cfg.Executor.PersistentRuns(container)) {
		e.of.cfg.Log.Error().Err(err).Str("sandbox", e.id).
			Msg("cannot pause a sandbox that is recorded as paused; trying again")
		return false
	}
	return true
}

// entry returns the entry of a sandbox; nil if there is none.
func (s *Sandboxes) entry(id string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// Find returns a sandbox that this owner has created. For others it does not exist.
func (s *Sandboxes) Find(owner quota.Token, id string) (*Sandbox, error) {
	b, err := s.Any(id)
	if err != nil || b.entry.recorded().Owner != owner.Name {
		return nil, errs.NotFound("there is no sandbox %.64q", id)
	}
	b.owner = owner
	return b, nil
}

// Any returns a client's sandbox, whoever created it, if its owner still exists: it is for callers
// that have proved that they may.
func (s *Sandboxes) Any(id string) (*Sandbox, error) {
	if e := s.entry(id); e != nil && e.recorded().Of == nil {
		e.keepHome()
		e.mu.Lock()
		defer e.mu.Unlock()
		if owner, known := s.cfg.Owners.Owner(e.record.Owner); known && !e.gone {
			return &Sandbox{entry: e, owner: owner}, nil
		}
	}
	return nil, errs.NotFound("there is no sandbox %.64q", id)
}

// List returns the sandboxes of clients with an owner's token, the oldest first.
func (s *Sandboxes) List(owner quota.Token) []Info {
	return s.list(func(r record) bool { return r.Of == nil && r.Owner == owner.Name })
}

// All returns all clients' sandboxes, the oldest first.
func (s *Sandboxes) All() []Info { return s.list(func(r record) bool { return r.Of == nil }) }

func (s *Sandboxes) list(match func(record) bool) []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Info{}
	for _, e := range s.all {
		e.mu.Lock()
		if !e.gone && match(e.record) {
			list = append(list, e.info())
		}
		e.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b Info) int {
		if c := a.Started.Compare(b.Started); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

// errEnded is the error for a sandbox whose container is lost.
var errEnded = fmt.Errorf(
	"the sandbox has ended: its container was lost, as when the engine is restarted; make another one: %w",
	cerrdefs.ErrUnavailable)
