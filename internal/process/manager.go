package process

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Config is what a Manager needs.
type Config struct {
	// Dir holds the records. The service alone may use it, and one service at a time.
	Dir    string
	Runner Runner
	// Shared keeps the records instead of Dir where there are several hosts, and KeyFile, the same on all of them, what
	// secrets are sealed with. Adopt says whose processes are this host's then.
	Shared  Shared
	KeyFile string
	// LogDir is the directory on the host that holds the log of one process, and nothing else. The process may write
	// to the directory, but not to those above. Open and Start ask.
	LogDir func(Record) string
	// Discard takes that directory away when the process is removed; what a tenant has put into it may go later.
	Discard func(Record) error
	Clock   Clock
	// Paused reports whether a user's sandbox is paused; nil where none is. Another user's of that id is another one.
	Paused func(user, sandboxID string) bool
	// Ports listens on the host for processes with ports to expose. Who made it ends it, after Shutdown.
	Ports *Listeners
	// BootID identifies this boot of Docker's host; see HostBootID.
	BootID string
	// Quotas bound how many processes there are, ended ones with them, and their ports; nil for no bounds.
	Quotas *quota.Ledger
	// Bounds are those until SetBounds.
	Bounds Bounds
	// Events gets each change of a record; nil for none.
	Events *events.Stream
	Log    zerolog.Logger
}

// Bounds are the part of Config that may change while a Manager runs.
type Bounds struct {
	// StopGrace is the time between a signal and SIGKILL; 0 is 8 s.
	StopGrace time.Duration
}

// defaultStopGrace is that of Bounds.
const defaultStopGrace = 8 * time.Second

// callLimit bounds what the Runner is asked for without a caller who waits.
const callLimit = 2 * time.Minute

// Manager holds all processes. It is safe for concurrent use.
type Manager struct {
	cfg      Config
	store    keeper
	vault    *vault
	bounds   atomic.Pointer[Bounds]
	restarts atomic.Uint64
	// restarting has one for each process that is being started again by itself.
	restarting chan struct{}
	problems   []string
	log        zerolog.Logger

	ctx    context.Context // ends with the manager
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // goroutines of the manager, and callers inside

	mu        sync.Mutex // never held over a call of the Runner or of the disk
	closed    bool
	processes map[string]*process // by id
	adopted   map[string]bool     // users whose records were read, of those that Config.Shared has

	queue reconcileQueue
	watch dirWatch // of the logs that are followed
}

// Open reads the records under Config.Dir, which it makes. It does not ask the Runner for anything:
// Reconcile is to be called next. End a Manager with Shutdown.
func Open(cfg Config) (*Manager, error) {
	if cfg.Dir == "" || cfg.Runner == nil || cfg.LogDir == nil || cfg.Discard == nil || cfg.Clock == nil || cfg.Ports == nil || cfg.BootID == "" {
		return nil, errors.New("cannot keep processes: Dir, Runner, LogDir, Discard, Clock, Ports and BootID must be set")
	}
	m := &Manager{
		cfg: cfg, store: store{cfg.Dir}, vault: &vault{keyFile: filepath.Join(cfg.Dir, "key")},
		log: cfg.Log, processes: map[string]*process{}, adopted: map[string]bool{}, restarting: make(chan struct{}, restartsAtOnce),
	}
	if cfg.Shared != nil {
		m.store, m.vault = shared{cfg.Shared}, &vault{keyFile: cfg.KeyFile}
	}
	m.SetBounds(cfg.Bounds)
	records, problems, err := m.store.load()
	if err != nil {
		return nil, err
	}
	for _, problem := range problems {
		m.log.Error().Msg(problem)
	}
	m.problems = problems
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	for _, r := range records {
		m.processes[r.ID] = m.restored(r)
	}
	return m, nil
}

// SetBounds has what is asked for from now on go by b. Processes that are there already stay.
func (m *Manager) SetBounds(b Bounds) {
	b.StopGrace = cmp.Or(b.StopGrace, defaultStopGrace)
	m.bounds.Store(&b)
}

// refresh is a record as it is when the service has just started.
func (m *Manager) refresh(r Record) Record {
	r.LogPath = m.logPath(r)
	if r.BootID != m.cfg.BootID {
		r.PID = 0 // it may be anybody's by now
	}
	if r.Status != Running && r.starting() && !r.KeepAlive {
		// Whoever wanted it got no answer, and part of it may have been done: twice is worse than not.
		r.DesiredState, r.Status = Stopped, Exited
		r.Reason = "the service ended while it was being started; start it again if it is still wanted"
	}
	return r
}

func (m *Manager) logPath(r Record) string { return filepath.Join(m.cfg.LogDir(r), logName) }

// Stats counts the processes that there are, and the restarts since Open.
type Stats struct {
	ByStatus map[State]int
	Restarts uint64
}

// Stats returns the current numbers, with one for every status.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{ByStatus: map[State]int{Running: 0, Stopped: 0, Exited: 0}, Restarts: m.restarts.Load()}
	for _, p := range m.processes {
		s.ByStatus[p.record.Status]++
	}
	return s
}

// Problems returns which records are damaged, for a person.
func (m *Manager) Problems() []string { return slices.Clone(m.problems) }

// Get finds a process of a user's. One of another user's is not found.
func (m *Manager) Get(user, id string) (Record, error) {
	p, err := m.find(user, id)
	if err != nil {
		return Record{}, err
	}
	return m.observed(p), nil
}

// List returns a user's processes by their creation.
func (m *Manager) List(user string) []Record {
	list := []Record{}
	for _, p := range m.all() {
		if m.shown(p).UserID == user {
			list = append(list, m.observed(p))
		}
	}
	byCreation(list)
	return list
}

func (m *Manager) find(user, id string) (*process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.processes[id]; p != nil && p.record.UserID == user {
		return p, nil
	}
	return nil, notFound(id)
}

func notFound(id string) error {
	return errs.NotFound("process %q is not there: list the processes to see which are", id)
}

func (m *Manager) all() []*process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.processes))
}

// shown is the record of now.
func (m *Manager) shown(p *process) Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return p.record
}
