package persistent

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
)

// OnDeadline is what happens to a sandbox at its deadline.
type OnDeadline int

// What may happen to it.
const (
	Kill OnDeadline = iota
	Pause
)

// Create describes a sandbox to be created.
type Create struct {
	// ID is an id from NewID; if it is empty, Create makes one.
	ID       string
	Template Template
	// Metadata and Note are kept and reported as they are.
	Metadata map[string]string
	Note     json.RawMessage
	// Env is the environment of every command; a command's own wins.
	Env map[string]string
	// Deadline is zero for none.
	Deadline   time.Time
	OnDeadline OnDeadline
	// AutoResume lets a call resume the sandbox if it is paused.
	AutoResume bool
	Network    Network
}

// Template is what sandboxes are made from.
type Template struct {
	// Name is reported in Info.
	Name string
	// Image is the reference of an image that Docker has; empty is the service's own.
	Image string
	// CPUs and Memory, in bytes, are 0 for those of the settings.
	CPUs   float64
	Memory int64
	// Env is overridden by Create.Env.
	Env map[string]string
	// Start is a command line for bash that keeps running; Ready is one that is run again and again
	// until it exits with 0, for at most ReadyTimeout, where 0 means a minute. Empty is none.
	Start, Ready string
	ReadyTimeout time.Duration
}

// Network is what a sandbox may reach.
type Network struct {
	// None means no interface at all, which cannot be changed later.
	None bool `json:"none,omitempty"`
	// Allow lists patterns of names, as in allowedDomains, and Deny patterns of names to exclude
	// again. Addresses and ranges are reached whatever the name, except for narrower ones in
	// DenyAddresses. With neither names nor addresses nothing is reached.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	// Presets are package managers whose names are allowed, beside Allow.
	Presets       []string `json:"presets,omitempty"`
	Addresses     []string `json:"addresses,omitempty"`
	DenyAddresses []string `json:"denyAddresses,omitempty"`
}

func (n Network) persistent() plan.Persistent {
	return plan.Persistent{NoNetwork: n.None, Allow: n.Allow, Deny: n.Deny,
		PackageManagers: n.Presets, AllowAddresses: n.Addresses, DenyAddresses: n.DenyAddresses}
}

// plan returns what a container is created from.
func (t Template) plan(n Network, root bool, env map[string]string) plan.Persistent {
	made := n.persistent()
	made.Root, made.Image, made.CPUs, made.Memory, made.Env = root, t.Image, t.CPUs, t.Memory,
		[]map[string]string{t.Env, env}
	return made
}

// waits reports whether something has to run in a new sandbox before it is there for callers.
func (t Template) waits() bool { return t.Start != "" || t.Ready != "" }

// maxKept bounds a sandbox's metadata, note and environment, in bytes each.
const maxKept = 64 << 10

func (r Create) check() error {
	size := func(m map[string]string) (n int) {
		for key, value := range m {
			n += len(key) + len(value)
		}
		return n
	}
	switch {
	case size(r.Metadata) > maxKept:
		return errs.Invalid("metadata has %d bytes, more than %d", size(r.Metadata), maxKept)
	case len(r.Note) > maxKept:
		return errs.Invalid("the note has %d bytes, more than %d", len(r.Note), maxKept)
	case size(r.Env) > maxKept:
		return errs.Invalid("the environment has %d bytes, more than %d", size(r.Env), maxKept)
	case r.ID != "" && !idPattern.MatchString(r.ID):
		return errs.Invalid("%.64q is not the id of a sandbox", r.ID)
	case r.OnDeadline != Kill && r.OnDeadline != Pause:
		return errs.Invalid("a deadline can only kill or pause")
	case !r.Deadline.IsZero() && !r.Deadline.After(time.Now()):
		return errs.Invalid("the deadline has passed already")
	}
	return nil
}

// NewID returns an unused id for a sandbox, which can also be a label of a host name.
func NewID() string {
	const random = 19
	return "s" + strings.ToLower(rand.Text())[:random]
}

// Create makes a sandbox. It returns when commands can start. After an error nothing is left of it.
func (s *Sandboxes) Create(ctx context.Context, owner quota.Token, c Create) (*Sandbox, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	r := record{
		Version: recordVersion, ID: cmp.Or(c.ID, NewID()), Owner: owner.Name,
		Template: c.Template.Name, Metadata: c.Metadata, Note: c.Note,
		Started: now, Deadline: c.Deadline.UTC(), OnDeadline: c.OnDeadline,
		AutoResume: c.AutoResume, Network: c.Network,
	}
	if c.Deadline.IsZero() {
		r.Deadline = time.Time{}
	} else {
		r.Length = r.Deadline.Sub(now)
	}
	if err := s.seated(&r, c.Template); err != nil {
		return nil, err
	}
	give, err := s.cfg.Places.TakePlace(ctx, quota.Account{User: r.ID, Token: owner})
	if err != nil {
		return nil, err
	}
	e := &entry{of: s, id: r.ID, record: r, gone: true, give: give, commands: map[int]*counted{},
		counted: true, place: here}
	e.changing.Lock()
	defer e.changing.Unlock()
	s.mu.Lock()
	s.all[r.ID] = e
	s.mu.Unlock()
	if err := e.create(ctx, owner, c); err != nil {
		err = errors.Join(err, e.remove())
		s.again.Store(true) // it may have a container from the pool
		s.rouse()
		return nil, err
	}
	s.rouse()
	return &Sandbox{entry: e, owner: owner}, nil
}

// register registers a sandbox's user, with all of a home of its own.
func (s *Sandboxes) register(r record, owner quota.Token) error {
	user, err := ids.ParseUser(r.ID)
	if err != nil {
		return err
	}
	id, err := ids.ParseSandbox(r.ID)
	if err != nil {
		return err
	}
	box := registry.Sandbox{ID: id, User: user, WorkingDir: policy.Home, Network: !r.Network.None}
	everyone := s.cfg.Planner.Sandboxes().Scoped(ids.Everyone(), owner)
	_, _, err = everyone.Put(box, time.Now().UTC())
	return err
}

// plan decides about a sandbox and plans its container, once. A new one gets what waits in the pool
// for such a sandbox.
func (s *Sandboxes) plan(ctx context.Context, id string, owner quota.Token, l plan.Persistent,
	isNew bool) (plan.Plan, error) {
	box, err := s.cfg.Planner.Sandboxes().Find(id)
	if err != nil {
		return plan.Plan{}, err
	}
	decided, err := s.cfg.Planner.DecidePersistent(box, l)
	if err != nil {
		return plan.Plan{}, err
	}
	if isNew && s.cfg.Pool != nil {
		s.cfg.Pool.BindPersistent(ctx, decided, l.Shape(), owner)
	}
	return s.cfg.Planner.PlanPersistent(ctx, decided, id, l.Shape())
}

// create creates a sandbox's user and container. It writes the record before either.
func (e *entry) create(ctx context.Context, owner quota.Token, c Create) error {
	r := e.record
	if err := e.write(r); err != nil {
		return err
	}
	if err := e.of.register(r, owner); err != nil {
		return err
	}
	asked := c.Template.plan(c.Network, e.of.cfg.Planner.AllowsRoot(), c.Env)
	made, err := e.of.plan(ctx, r.ID, owner, asked, true)
	if err != nil {
		return err
	}
	spec, env := made.Spec, made.PersistentEnvironment(asked.Env...)
	started, err := e.of.cfg.Executor.StartPersistent(ctx, spec, owner)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.container = started.ID
	e.mu.Unlock()
	limits := spec.Platform.Limits
	waits := c.Template.waits()
	if err := e.change(func(r *record) {
		r.Made, r.Env, r.Reach, r.CPUs, r.Memory, r.Root = !waits, env, &spec.Egress,
			float64(limits.NanoCPUs)/1e9, limits.Memory, spec.Root
	}); err != nil {
		return err
	}
	if waits {
		if err := (&Sandbox{entry: e, owner: owner}).
			makeReady(ctx, c.Template); err != nil {
			return err
		}
		if err := e.change(func(r *record) { r.Made = true }); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = false
	return nil
}
