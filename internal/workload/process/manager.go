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
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/vault"
)

// Config is what a Manager needs.
type Config struct {
	// Dir holds the records. Only the service may use it, and only one service at a time.
	Dir    string
	Runner Runner
	// Shared, if set, keeps the records instead of Dir, for several hosts. KeyFile, the same on all
	// of them, then holds the key that seals secrets, and Adopt says whose processes are this
	// host's.
	Shared  Shared
	KeyFile string
	Clock   Clock
	// Sandboxes says which sandboxes are paused; nil if none ever is.
	Sandboxes Sandboxes
	// Ports listens on the host for processes with ports to expose. Whoever created it shuts it
	// down, after Shutdown.
	Ports *Listeners
	// BootID identifies this boot of Docker's host; see HostBootID.
	BootID string
	// Quotas bound the number of processes, including ended ones, and of their ports; nil for no
	// bounds.
	Quotas *quota.Ledger
	// Bounds apply until SetBounds is called.
	Bounds Bounds
	// Events receives every change of a record; nil for none.
	Events *events.Stream
	Log    zerolog.Logger
}

// Sandboxes are what processes belong to. *registry.Registry implements it.
type Sandboxes interface {
	// IsPaused reports whether a user's sandbox is paused. Other users may have sandboxes of the
	// same id.
	IsPaused(user, sandboxID string) bool
}

// Bounds are the part of Config that may change while a Manager runs.
type Bounds struct {
	// StopGrace is the time between a signal and SIGKILL; 0 is 8 s.
	StopGrace time.Duration
}

// defaultStopGrace is the default of Bounds.StopGrace.
const defaultStopGrace = 8 * time.Second

// callLimit bounds calls of the Runner that no caller waits for.
const callLimit = 2 * time.Minute

// Manager holds all processes. It is safe for concurrent use.
type Manager struct {
	cfg      Config
	store    keeper
	vault    *vault.Vault
	bounds   atomic.Pointer[Bounds]
	restarts atomic.Uint64
	// restarting are the turns of automatic restarts: slow starts of one user leave one for others.
	restarting fair.Turns
	problems   []string
	log        zerolog.Logger

	ctx    context.Context // ends with the manager
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // goroutines of the manager, and callers inside it

	mu        sync.Mutex // never held during a call of the Runner or an access to the disk
	closed    bool
	processes map[string]*process        // by id
	ofUsers   map[string][]*process      // the same by user, so that calls of one user cost nothing for others
	adopted   map[string]bool            // users whose records were read from Config.Shared
	wanted    map[string]map[string]bool // by user: those of Config.Shared to be run somewhere

	queue reconcileQueue
	watch dirWatch // watches the logs that are followed
}

// Open reads the records under Config.Dir, which it creates if missing. It does not call the
// Runner: call Lost when that knows the containers. End a Manager with Shutdown.
func Open(cfg Config) (*Manager, error) {
	if cfg.Dir == "" || cfg.Runner == nil || cfg.Clock == nil || cfg.Ports == nil ||
		cfg.BootID == "" {
		return nil, errors.New(
			"cannot keep processes: Dir, Runner, Clock, Ports and BootID must be set")
	}
	m := &Manager{
		cfg: cfg, store: store{cfg.Dir}, vault: vault.New(filepath.Join(cfg.Dir, "key")),
		log: cfg.Log, processes: map[string]*process{}, ofUsers: map[string][]*process{}, adopted: map[string]bool{},
		wanted:     map[string]map[string]bool{},
		restarting: fair.Turns{All: restartsAtOnce, Each: restartsOfUser},
	}
	if cfg.Shared != nil { // other hosts write launch files there, too: Adopt drops a user's
		m.store, m.vault = shared{cfg.Shared}, vault.New(cfg.KeyFile)
	} else if err := cfg.Runner.DropUnread(""); err != nil {
		return nil, err
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
		m.put(m.restored(r))
	}
	return m, nil
}

// put adds a process; m.mu is held, or nobody else has m yet.
func (m *Manager) put(p *process) {
	m.processes[p.id] = p
	m.ofUsers[p.record.UserID] = append(m.ofUsers[p.record.UserID], p)
}

// drop is the opposite of put; m.mu is held.
func (m *Manager) drop(p *process) {
	delete(m.processes, p.id)
	user := p.record.UserID
	m.ofUsers[user] = slices.DeleteFunc(m.ofUsers[user], func(one *process) bool { return one == p })
	if len(m.ofUsers[user]) == 0 {
		delete(m.ofUsers, user)
	}
}

// SetBounds applies b to what is asked for from now on. Existing processes are kept.
func (m *Manager) SetBounds(b Bounds) {
	b.StopGrace = cmp.Or(b.StopGrace, defaultStopGrace)
	m.bounds.Store(&b)
}

// refresh returns a record as it is when the service has just started.
func (m *Manager) refresh(r Record) Record {
	r.LogPath = m.logPath(r)
	if r.BootID != m.cfg.BootID {
		r.PID = 0 // by now another process may have it
	}
	r.Paused = r.Status == Running && m.paused(r)
	if r.Status != Running && r.starting() {
		// Its caller got no answer, and part of it may have been done: running it twice is worse
		// than not at all.
		r.DesiredState, r.Status = Stopped, Exited
		r.Reason = "the service ended while it was being started; start it again if it is still wanted"
	}
	return r
}

func (m *Manager) logPath(r Record) string { return filepath.Join(m.cfg.Runner.Dir(r), logName) }

// Stats counts the existing processes by status, and the restarts since Open.
type Stats struct {
	ByStatus map[State]int
	Restarts uint64
}

// Stats returns the current numbers, with an entry for every status.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{ByStatus: map[State]int{Running: 0, Paused: 0, Stopped: 0, Exited: 0},
		Restarts: m.restarts.Load()}
	for _, p := range m.processes {
		s.ByStatus[p.record.State()]++
	}
	return s
}

// Problems describes the damaged records, for a person.
func (m *Manager) Problems() []string { return slices.Clone(m.problems) }

// Get returns a user's process. Another user's process is not found.
func (m *Manager) Get(user, id string) (Record, error) {
	p, err := m.find(user, id)
	if err != nil {
		return Record{}, err
	}
	return p.observed(), nil
}

// Running returns the user's process that runs and has an id, or else a name.
func (m *Manager) Running(user, idOrName string) (Record, error) {
	found, there := Record{}, false
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.processes[idOrName]; p != nil && p.record.UserID == user {
		found, there = p.record, true
	}
	for _, p := range m.ofUsers[user] {
		if r := p.record; found.ID != idOrName && r.Name == idOrName && r.Name != "" &&
			(!there || r.Status == Running) {
			found, there = r, true
		}
	}
	switch {
	case !there:
		return Record{}, notFound(idOrName)
	case found.Status != Running:
		return Record{}, errs.Conflict("process %.200q does not run", idOrName)
	}
	return found, nil
}

// List returns a user's processes in order of creation.
func (m *Manager) List(user string) []Record {
	m.mu.Lock()
	all := slices.Clone(m.ofUsers[user])
	m.mu.Unlock()
	return observed(all)
}

// ListOf is List for all users who match.
func (m *Manager) ListOf(match func(user string) bool) []Record {
	return observed(slices.DeleteFunc(m.all(), func(p *process) bool { return !match(p.shown().UserID) }))
}

func observed(all []*process) []Record {
	list := []Record{}
	for _, p := range all {
		list = append(list, p.observed())
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
	return errs.NotFound("process %q is not there: list the processes to see which there are", id)
}

func (m *Manager) all() []*process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.processes))
}

// shown returns the current record.
func (p *process) shown() Record {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.record
}
