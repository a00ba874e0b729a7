package lasting

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// OnDeadline is what becomes of a sandbox whose deadline has come.
type OnDeadline int

// What may become of it.
const (
	Kill OnDeadline = iota
	Pause
)

// Create is what a sandbox is to be.
type Create struct {
	// ID is one of NewID's; empty is another of them.
	ID       string
	Template Template
	// Metadata and Note are kept and told back, and not looked at.
	Metadata map[string]string
	Note     json.RawMessage
	// Env is every command's; a command's own wins.
	Env map[string]string
	// Deadline is zero for none.
	Deadline   time.Time
	OnDeadline OnDeadline
	// AutoResume has a call resume the sandbox if it is paused.
	AutoResume bool
	Network    Network
}

// Template is what sandboxes are made from.
type Template struct {
	// Name is told back.
	Name string
	// Image is a reference of an image that the engine has; empty is the service's own.
	Image string
	// CPUs and Memory, in bytes, are 0 for those of the settings.
	CPUs   float64
	Memory int64
	// Env is under Create.Env.
	Env map[string]string
	// Start is a command line for bash that goes on; Ready is one that is run again and again until it ends with 0, for at
	// most ReadyTimeout, which is 0 for a minute. Empty is none.
	Start, Ready string
	ReadyTimeout time.Duration
}

// Network is what a sandbox may reach.
type Network struct {
	// None is no interface at all, which cannot be changed later.
	None bool `json:"none,omitempty"`
	// Allow are patterns of names, as allowedDomains has them, and Deny those of names taken away again. Addresses and ranges
	// of addresses are reached whatever the name, but for those that DenyAddresses has more narrowly. Without either nothing is.
	Allow         []string `json:"allow,omitempty"`
	Deny          []string `json:"deny,omitempty"`
	Addresses     []string `json:"addresses,omitempty"`
	DenyAddresses []string `json:"denyAddresses,omitempty"`
}

func (n Network) lasting() sandbox.Lasting {
	return sandbox.Lasting{NoNetwork: n.None, Allow: n.Allow, Deny: n.Deny, AllowAddresses: n.Addresses, DenyAddresses: n.DenyAddresses}
}

// plan is what a container is made of.
func (t Template) plan(n Network, root bool, env map[string]string) sandbox.Lasting {
	plan := n.lasting()
	plan.Root, plan.Image, plan.CPUs, plan.Memory, plan.Env = root, t.Image, t.CPUs, t.Memory, []map[string]string{t.Env, env}
	return plan
}

// waits reports whether a sandbox is not there before something has run in it.
func (t Template) waits() bool { return t.Start != "" || t.Ready != "" }

// maxKept bounds what is kept of a sandbox for its caller, in bytes: metadata, note, and environment each.
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
		return errs.Invalid("%.64q is no sandbox's id", r.ID)
	case r.OnDeadline != Kill && r.OnDeadline != Pause:
		return errs.Invalid("a deadline kills or pauses")
	case !r.Deadline.IsZero() && !r.Deadline.After(time.Now()):
		return errs.Invalid("the deadline has passed already")
	}
	return nil
}

// NewID is a name for a sandbox that is nobody's, and may be a label of a host's name.
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
		Version: recordVersion, ID: cmp.Or(c.ID, NewID()), Owner: owner.Name, Template: c.Template.Name, Metadata: c.Metadata, Note: c.Note,
		Started: now, Deadline: c.Deadline.UTC(), OnDeadline: c.OnDeadline, AutoResume: c.AutoResume, Network: c.Network,
	}
	if c.Deadline.IsZero() {
		r.Deadline = time.Time{}
	} else {
		r.Length = r.Deadline.Sub(now)
	}
	if err := s.seated(&r, c.Template); err != nil {
		return nil, err
	}
	service := s.service(owner)
	give, err := service.TakeContainer(r.ID, false)
	if err != nil {
		return nil, err
	}
	e := &entry{id: r.ID, record: r, gone: true, give: give, commands: map[int]*counted{}, counted: true, held: true}
	e.changing.Lock()
	defer e.changing.Unlock()
	s.mu.Lock()
	s.all[r.ID] = e
	s.mu.Unlock()
	if err := s.create(ctx, service, owner, e, c); err != nil {
		err = errors.Join(err, s.remove(e))
		s.again.Store(true) // it may have a container from the pool
		s.rouse()
		return nil, err
	}
	s.rouse()
	return &Sandbox{of: s, entry: e, service: service}, nil
}

// create makes a sandbox's user and container; its record is there before either.
func (s *Sandboxes) create(ctx context.Context, service *sandbox.Service, owner quota.Token, e *entry, c Create) error {
	r := e.record
	if err := s.write(e, r); err != nil {
		return err
	}
	if _, _, err := service.Put(r.ID, sandbox.Registration{UserID: r.ID, Network: !c.Network.None}); err != nil {
		return err
	}
	plan := c.Template.plan(c.Network, s.cfg.Root(), c.Env)
	service.BindLasting(ctx, r.ID, plan)
	spec, env, err := service.PlanLasting(ctx, r.ID, plan)
	if err != nil {
		return err
	}
	started, err := s.cfg.Executor.StartLasting(ctx, spec, owner)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.container = started.ID
	e.mu.Unlock()
	limits := spec.Platform.Limits
	waits := c.Template.waits()
	if err := s.change(e, func(r *record) {
		r.Made, r.Env, r.Reach, r.CPUs, r.Memory, r.Root = !waits, env, &spec.Egress, float64(limits.NanoCPUs)/1e9, limits.Memory, spec.Root
	}); err != nil {
		return err
	}
	if waits {
		if err := (&Sandbox{of: s, entry: e, service: service}).makeReady(ctx, c.Template); err != nil {
			return err
		}
		if err := s.change(e, func(r *record) { r.Made = true }); err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = false
	return nil
}
