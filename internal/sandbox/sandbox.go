// Package sandbox is the facade: it holds what is registered, and carries out calls. It is the one
// place that fixes the order of checks before anything runs.
//
// A Service finds a request's sandbox in the registry, checks the request, and has package plan
// decide about it and plan its container, once. Then an Executor runs it, or package process starts
// it.
package sandbox

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/files"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/attach"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// Config is what decides about calls. All fields must be set, except where they say that nil means
// none. A Config that config.Load has accepted gives valid values.
type Config struct {
	// DefaultTimeout is for calls that name no timeout; MaxTimeout is the longest that a call may
	// name.
	DefaultTimeout, MaxTimeout time.Duration
	// MaxAttachedTimeout is the longest for a call with a terminal, and its default.
	MaxAttachedTimeout time.Duration
	// KillGrace is the time between SIGTERM and SIGKILL.
	KillGrace time.Duration
	// MaxImage bounds the images that a read returns.
	MaxImage files.ImageBounds
	// Decisions is the log of what egress decided.
	Decisions *decisions.Log
	// Quotas bound what callers have at a time; nil for no bounds.
	Quotas *quota.Ledger
	// Events gets a calls.Event for each phase of an exec; nil for none.
	Events *events.Stream
	// Hour counts the calls that Events gets; nil for no counts.
	Hour *calls.Hour
}

// Loaded says when the settings were read, and what has happened since.
type Loaded struct {
	At time.Time
	// Pending are the keys of the settings that need a restart to take effect.
	Pending []string
	// Refused says that the settings were read again later and could not be used; TokensRefused
	// says the same of the tokens.
	Refused, TokensRefused bool
}

// Runner runs commands in containers that it keeps. *warm.Runner is one.
type Runner interface {
	Run(context.Context, dockerexec.Spec, warm.Command, session.Output) (warm.Result,
		error)
	Containers() []dockerexec.Summary
	Pooled() []dockerexec.Summary
	Usages(context.Context) map[string]cgroup.Usage
	FreezeIdle(user string)
	Warm(user string, token quota.Token,
		plan func(_ context.Context, make func(dockerexec.Spec)) error)
	plan.TmpOpener
}

// Executor has all containers. *dockerexec.Executor is one.
type Executor interface {
	Leave(ctx context.Context, user string) error
	files.Executor
}

// Service carries out calls. It is safe for concurrent use.
type Service struct {
	*files.Files  // its file calls
	*process.View // its calls about processes

	planner    *plan.Planner
	runner     Runner
	executor   Executor
	processes  *process.Manager
	offers     *process.Offers
	pool       *Pool                 // nil for none
	persistent *persistent.Sandboxes // nil for none
	trash      *hostfs.Trash
	detached   *attach.Store[Result]
	outputs    *outputs
	// settings and loaded are shared with the Services that Scoped returns.
	settings *atomic.Pointer[Config]
	loaded   *atomic.Pointer[Loaded]

	registry *registry.Registry // shows the sandboxes of scope
	scope    ids.Users          // the users for whom its callers act
	token    quota.Token        // the token that they use
}

// Parts are what a Service is made of. It owns none of them.
type Parts struct {
	Planner   *plan.Planner
	Runner    Runner
	Executor  Executor
	Processes *process.Manager
	// Persistent and Pool may be nil.
	Persistent *persistent.Sandboxes
	Pool       *Pool
	// Trash takes what is left of users who are removed.
	Trash *hostfs.Trash
}

// New returns a Service.
func New(cfg Config, of Parts) *Service {
	s := &Service{
		Files:   files.New(of.Planner, of.Executor, of.Runner),
		View:    process.NewView(of.Processes, of.Planner.Sandboxes()),
		planner: of.Planner, runner: of.Runner, executor: of.Executor,
		processes: of.Processes, offers: process.NewOffers(of.Processes), persistent: of.Persistent, pool: of.Pool, trash: of.Trash,
		settings: &atomic.Pointer[Config]{}, loaded: &atomic.Pointer[Loaded]{},
		outputs:  &outputs{all: map[uint64]*lastOutput{}},
		detached: attach.NewStore[Result](attach.Config{Quotas: cfg.Quotas, Keep: keepDetached}),
		registry: of.Planner.Sandboxes(), scope: ids.Everyone(),
	}
	s.Use(cfg)
	s.SetLoaded(Loaded{})
	return s
}

// Use replaces the Config for later calls. Decisions, Quotas, Events and Hour must be those of New.
func (s *Service) Use(cfg Config) {
	s.settings.Store(&cfg)
	s.SetMaxImage(cfg.MaxImage)
}

// SetLoaded sets what Health reports about the settings.
func (s *Service) SetLoaded(l Loaded) { s.loaded.Store(&l) }

// Pending returns the keys of the settings that need a restart to take effect.
func (s *Service) Pending() []string { return s.loaded.Load().Pending }

func (s *Service) cfg() *Config { return s.settings.Load() }

// Confinement is the part of a request that decides what its command may see and reach.
type Confinement = plan.Confinement

// Restrictions are what a call gives up.
type Restrictions = plan.Restrictions

// Sandbox is what a caller has registered for an agent.
type Sandbox = registry.Sandbox

// call finds a sandbox and resolves a request to it.
func (s *Service) call(id string, asked Confinement) (*plan.Call, error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	return s.planner.Resolve(box, asked)
}

// plan decides about a call and plans its container. A dry run makes nothing.
func (s *Service) plan(ctx context.Context, c *plan.Call, dryRun bool) (plan.Plan, error) {
	decided, err := s.planner.Decide(c)
	if err != nil {
		return plan.Plan{}, err
	}
	return s.planner.Plan(ctx, decided, dryRun)
}

// Registration is what a caller says about a sandbox, as it came.
type Registration struct {
	UserID string
	// WorkingDir is empty for the home. All paths are container paths, or host paths under a mount.
	WorkingDir          string
	WriteDirs, ReadDirs []string
	Network, Events     bool
	Processes, Secrets  []string
	AppID               string // empty for an agent that is no app
	Mounts              []MountRequest
	SkillsDir           string // on the host, below one of allowedMountRoots; empty for none
	// Persistent gives the sandbox a container of its own, in which calls may run with all that it
	// holds. AllowedDomains and PackageManagers are what that may reach.
	Persistent                      bool
	AllowedDomains, PackageManagers []string
	// Warm are the tags of an expected call, whose container is made in the background; nil for
	// none, and empty for a call without grants. They are not part of the Sandbox.
	Warm []string
}

// MountRequest is a further directory of the host, as a caller asks for it.
type MountRequest struct {
	Source   string // on the host, below one of allowedMountRoots
	Target   string // inside
	ReadOnly bool
}

// Put registers or replaces a sandbox. It does not wait for anything that it starts.
func (s *Service) Put(id string, r Registration) (box Sandbox, created bool, err error) {
	if box, err = s.parseRegistration(id, r); err != nil {
		return Sandbox{}, false, err
	}
	if err := s.mayHold(box); err != nil {
		return Sandbox{}, false, err
	}
	if r.Warm != nil {
		if err := s.checkWarm(box, r.Warm); err != nil {
			return Sandbox{}, false, err
		}
	}
	now := time.Now().UTC()
	box, created, err = s.registry.Put(box, now)
	if err == nil && box.UpdatedAt.Equal(now) { // else nothing has changed
		s.persistent.Registered(box.User.String())
	}
	if err == nil && r.Warm != nil {
		s.warm(box, r.Warm)
	}
	return box, created, err
}

// Get finds a sandbox.
func (s *Service) Get(id string) (Sandbox, error) { return s.registry.Find(id) }

// Delete forgets a sandbox; its user's files stay, and its processes continue.
func (s *Service) Delete(ctx context.Context, id string) error {
	parsed, err := ids.ParseSandbox(id)
	if err != nil {
		return err
	}
	box, _ := s.registry.Get(parsed)
	if err := s.registry.Delete(parsed); err != nil {
		return err
	}
	s.persistent.Registered(box.User.String())
	return s.processes.FollowPause(ctx, parsed.String())
}

// List returns the sandboxes by id.
func (s *Service) List() []Sandbox { return s.registry.List() }

// Health describes the state of the service.
type Health struct {
	// Engine, Runtime, Image and ImageVersion are known when Problem is empty.
	Engine       string
	Runtime      string
	Image        string
	ImageVersion string
	// Problem says why commands cannot run now, and what to do about it.
	Problem string
	// UsersDir holds the users' homes on the host, and MaxTimeout is the most that a call may take.
	UsersDir   string
	MaxTimeout time.Duration
	// Warnings say what is lost or damaged although commands run.
	Warnings []string
	// Settings are those in force.
	Settings Loaded
}

// Health reports the state of the service. It asks Docker if it has to.
func (s *Service) Health(ctx context.Context) Health {
	h := Health{UsersDir: s.planner.Files().UsersDir(), MaxTimeout: s.cfg().MaxTimeout,
		Settings: *s.loaded.Load()}
	if s.scope.All() { // these name processes of all users
		h.Warnings = s.processes.Problems()
	}
	if off := s.pool.Off(); off != "" {
		h.Warnings = append(h.Warnings,
			"the pool is off, so new users wait for their containers: "+off+
				", as the service's log says; put usersDir on another file system, or set pool.size to 0, and send SIGHUP")
	}
	if h.Settings.Refused {
		h.Warnings = append(h.Warnings,
			"the settings were read again and cannot be used: the service's log says why, and those from before stay in force")
	}
	if h.Settings.TokensRefused {
		h.Warnings = append(h.Warnings,
			"the tokens were read again and cannot be used: the service's log says why, and those from before stay in force")
	}
	present, err := s.planner.Platforms().Present(ctx)
	if err != nil {
		h.Problem = err.Error()
		return h
	}
	h.Engine, h.Runtime, h.Image, h.ImageVersion = present.Engine, present.Runtime, present.ImageID,
		present.Version
	return h
}
