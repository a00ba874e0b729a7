// Package registry holds what is registered: the sandboxes, their records on disk or in a cluster,
// who of them is paused, and which users are being removed.
package registry

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/durable"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/pathmap"
)

// Sandbox is what a caller has registered for an agent.
type Sandbox struct {
	ID         ids.Sandbox
	User       ids.User
	WorkingDir pathmap.ContainerPath
	// WriteDirs, ReadDirs, Network, Events, Processes, Secrets and AppID are the other permissions.
	WriteDirs, ReadDirs []pathmap.ContainerPath
	Network, Events     bool
	Processes, Secrets  []string
	AppID               string
	Mounts              []Mount
	SkillsDir           string // on the host; empty for none
	// Persistent says that the sandbox has a container of its own for its life, in which calls may
	// run with all that it holds. Domains and Presets are the names that it may reach.
	Persistent       bool
	Domains, Presets []string
	// Token is the name of the token with which it was registered; empty for a caller at the
	// socket.
	Token string
	// Paused says that nothing in it may run until it is resumed.
	Paused    bool
	CreatedAt time.Time
	UpdatedAt time.Time
}

// Mount is a further directory of the host at a container path. Calls see it, or a part of it, by
// grant.
type Mount struct {
	Source   pathmap.HostPath
	Target   pathmap.ContainerPath
	ReadOnly bool
}

// Registry holds the sandboxes, each in a file of its own under its directory. It is safe for
// concurrent use. In a registry that Scoped has returned, other users' sandboxes do not exist.
type Registry struct {
	*records
	scope ids.Users   // the users whose sandboxes exist here
	token quota.Token // the token with which sandboxes are registered here
}

// records are the sandboxes: one set, however many registries show it.
type records struct {
	files  durable.Records
	shared Records // nil for files
	quotas *quota.Ledger

	writing   [256]sync.Mutex // see lockOf; each is locked before mu
	mu        sync.RWMutex
	revisions map[ids.Sandbox]int64 // of shared records
	sandboxes map[ids.Sandbox]Sandbox
	apps      appDirs
	give      map[ids.Sandbox]func() // gives back what a sandbox takes of the quotas
	active    map[ids.Sandbox]*activity
	// commands counts those in progress, also if their sandbox was deleted meanwhile, and what else
	// keeps a user from being removed.
	commands map[ids.User]int
	closed   map[ids.User]bool // users who are being removed
}

// Open reads the records under dir, which it makes. A record that cannot be read is set aside as
// <name>.damaged and logged; the others load. quotas bound how many there may be.
func Open(dir string, quotas *quota.Ledger, log zerolog.Logger) (*Registry, error) {
	r := &Registry{
		records: &records{
			files: durable.Records{Dir: dir}, quotas: quotas, sandboxes: map[ids.Sandbox]Sandbox{},
			apps: appDirs{}, give: map[ids.Sandbox]func(){},
			active: map[ids.Sandbox]*activity{}, commands: map[ids.User]int{},
			closed: map[ids.User]bool{},
		},
		scope: ids.Everyone(),
	}
	err := r.files.Load(func(id string, text []byte) error {
		s, err := parseRecord(id, text)
		if err != nil {
			return err
		}
		r.keep(s)
		r.give[s.ID] = quotas.Hold(quota.Account{User: s.User.String(),
			Token: quota.Token{Name: s.Token}}, quota.Sandboxes, 1)
		return nil
	}, func(why error, file, aside string) {
		log.Error().Err(why).Str("file", file).Str("setAside", aside).Msg("damaged sandbox record")
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open the sandbox records: %w", err)
	}
	return r, nil
}

// PolicyPermissions returns the sandbox's permissions in the form that policy takes.
func (s Sandbox) PolicyPermissions() policy.Permissions {
	app, _ := policy.ParseAppID(s.AppID) // it was parsed when it was registered
	return policy.Permissions{
		WorkingDir: s.WorkingDir, WriteDirs: s.WriteDirs, ReadDirs: s.ReadDirs,
		Network: s.Network, Events: s.Events, Processes: s.Processes, Secrets: s.Secrets, AppID: app,
	}
}

// same compares everything but the times, the token that registered it, and whether it is paused.
func (s Sandbox) same(other Sandbox) bool {
	return s.ID == other.ID && s.User == other.User && s.WorkingDir == other.WorkingDir &&
		slices.Equal(s.WriteDirs, other.WriteDirs) && slices.Equal(s.ReadDirs, other.ReadDirs) &&
		s.Network == other.Network && s.Events == other.Events && s.AppID == other.AppID &&
		slices.Equal(s.Mounts, other.Mounts) && s.SkillsDir == other.SkillsDir &&
		s.Persistent == other.Persistent &&
		slices.Equal(s.Processes, other.Processes) && slices.Equal(s.Secrets, other.Secrets) &&
		slices.Equal(s.Domains, other.Domains) && slices.Equal(s.Presets, other.Presets)
}

// Scoped returns the registry for callers who act for some users alone, or by a token.
func (r *Registry) Scoped(users ids.Users, token quota.Token) *Registry {
	return &Registry{records: r.records, scope: users, token: token}
}

// Put registers a sandbox or replaces it, durably, and reports whether it is new. A sandbox keeps
// its user: a different user is a conflict.
func (r *Registry) Put(s Sandbox, now time.Time) (_ Sandbox, created bool, _ error) {
	if !r.scope.Has(s.User) {
		return Sandbox{}, false, errs.Denied("userId %q: this caller may act for %s alone", s.User,
			r.scope)
	}
	defer r.change(s.ID)()
	if err := r.isOpen(s.User); err != nil {
		return Sandbox{}, false, err
	}
	r.commands[s.User]++ // whoever removes the user waits for it
	defer r.done(s.User)
	s.CreatedAt, s.UpdatedAt, s.Token = now, now, r.token.Name
	old, exists := r.sandboxes[s.ID]
	if exists {
		if !r.scope.Has(old.User) {
			return Sandbox{}, false,
				errs.NotFound("sandbox %q is not this caller's: take another id", s.ID)
		}
		if old.User != s.User {
			return Sandbox{}, false,
				errs.Conflict(
					"sandbox %q belongs to user %q, not %q: delete it first or take another id",
					s.ID, old.User, s.User)
		}
		s.CreatedAt, s.Token, s.Paused = old.CreatedAt, old.Token, old.Paused
		if old.same(s) {
			return old, false, nil
		}
	}
	give := r.give[s.ID]
	if !exists {
		var err error
		if give, err = r.quotas.Take(quota.Account{User: s.User.String(), Token: r.token},
			quota.Sandboxes, 1); err != nil {
			return Sandbox{}, false, fmt.Errorf("cannot register sandbox %q: %w", s.ID, err)
		}
	}
	if err := r.write(s); err != nil {
		if !exists {
			give()
		}
		return Sandbox{}, false, err
	}
	if told := r.give[s.ID]; !exists && told != nil {
		told() // apply has counted it meanwhile
	}
	r.keep(s)
	r.give[s.ID] = give
	return s, !exists, nil
}

var seed = maphash.MakeSeed()

// lockOf returns the lock for changes to a sandbox's record.
func (r *records) lockOf(id ids.Sandbox) *sync.Mutex {
	return &r.writing[maphash.Comparable(seed, id)%uint64(len(r.writing))]
}

// change locks a sandbox's record against other changes, and the map of all sandboxes, until done
// is called.
func (r *records) change(id ids.Sandbox) (done func()) {
	writing := r.lockOf(id)
	writing.Lock()
	r.mu.Lock()
	return func() { r.mu.Unlock(); writing.Unlock() }
}

// unlocked runs do, which is slow, without mu within change: other sandboxes' calls need not wait
// for a disk, which syncs many records as fast as one.
func (r *records) unlocked(do func() error) error {
	r.mu.Unlock()
	defer r.mu.Lock()
	return do()
}

// write records a sandbox, durably, within change.
func (r *records) write(s Sandbox) error {
	text, err := json.Marshal(newRecord(s))
	if err == nil && r.shared != nil {
		err = r.share(s, text)
	} else if err == nil {
		err = r.unlocked(func() error { return r.files.Write(s.ID.String(), text) })
	}
	if err != nil {
		return fmt.Errorf("cannot record sandbox %q: %w", s.ID, errs.WithoutPath(err))
	}
	return nil
}

// keep adds a sandbox to those in memory or replaces it; mu is held.
func (r *records) keep(s Sandbox) {
	if old, known := r.sandboxes[s.ID]; known {
		r.apps.remove(old)
	}
	r.apps.add(s)
	r.sandboxes[s.ID] = s
}

// forget removes a sandbox from memory; mu is held.
func (r *records) forget(id ids.Sandbox) {
	r.give[id]()
	r.apps.remove(r.sandboxes[id])
	delete(r.sandboxes, id)
	delete(r.give, id)
	delete(r.active, id)
}

// AppRoots returns the app directories of a user's sandboxes that are apps. The caller must not
// change the list.
func (r *Registry) AppRoots(user ids.User) []pathmap.ContainerPath {
	r.mu.RLock()
	dirs, ready := r.apps.of(user)
	r.mu.RUnlock()
	if ready {
		return dirs
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.apps.make(user)
}

// Find finds a sandbox by an id as it came.
func (r *Registry) Find(id string) (Sandbox, error) {
	parsed, err := ids.ParseSandbox(id)
	if err != nil {
		return Sandbox{}, err
	}
	return r.Get(parsed)
}

// Get finds a sandbox.
func (r *Registry) Get(id ids.Sandbox) (Sandbox, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	s, ok := r.sandboxes[id]
	if !ok || !r.scope.Has(s.User) {
		return Sandbox{}, errs.NotFound("sandbox %q is not registered: PUT /v1/sandboxes/%s first",
			id, id)
	}
	return s, r.isOpen(s.User)
}

// Delete forgets a sandbox. Its user's files and running commands are left alone.
func (r *Registry) Delete(id ids.Sandbox) error {
	defer r.change(id)()
	s, ok := r.sandboxes[id]
	if !ok || !r.scope.Has(s.User) {
		return errs.NotFound("sandbox %q is not registered", id)
	}
	if r.shared != nil {
		if err := r.share(s, nil); err != nil {
			return fmt.Errorf("cannot delete sandbox %q: %w", id, err)
		}
		if _, still := r.sandboxes[id]; still {
			r.forget(id)
		}
		return nil
	}
	if err := r.unlocked(func() error { return r.files.Remove(id.String()) }); err != nil {
		return fmt.Errorf("cannot delete sandbox %q: %w", id, errs.WithoutPath(err))
	}
	r.forget(id)
	return nil
}

// List returns the sandboxes by id.
func (r *Registry) List() []Sandbox {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]Sandbox, 0, len(r.sandboxes))
	for _, s := range r.sandboxes {
		if r.scope.Has(s.User) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b Sandbox) int {
		return strings.Compare(a.ID.String(), b.ID.String())
	})
	return list
}

// HasUser reports whether a user has a sandbox, whoever may name it.
func (r *records) HasUser(user string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, s := range r.sandboxes {
		if s.User.String() == user {
			return true
		}
	}
	return false
}

// InMount reports whether a further mount holds a path. Seeing the path takes a grant.
func (s Sandbox) InMount(path pathmap.ContainerPath) bool {
	return slices.ContainsFunc(s.Mounts, func(m Mount) bool { return path.Within(m.Target) })
}
