// Package sandbox is the facade: what an engine registers, and what its calls do. It is the one
// place that fixes the order of checks before anything runs.
//
// registry.go keeps the sandboxes, ids.go and requests.go have what callers send; subject.go and mounts.go read
// what an engine registers; platform.go knows what settings and host decide; home.go finds a user's home, owners.go says whose it is; plan.go
// makes a call's container out of policy's decision, restrict.go takes away from that what a call gives up,
// masks.go and hidden.go hide what is to be hidden, binds.go bounds how many mounts that takes, ground.go makes what that needs on the host, sites.go finds it
// there and watch.go gives up containers in which it has changed; outside.go has what a call reaches;
// environment.go builds a command's environment, exec.go runs it, refusals.go tells what it could not reach and
// observe.go what is counted; detached.go runs it for a caller that may be lost; files.go and read.go answer the
// calls on files and explain, whose paths spot.go finds on the host; processes.go answers those on processes, and
// runner.go makes their containers. among.go is the service as those have it who act for some users alone.
package sandbox

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/attach"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/pathmap"
)

// Config is what a Service needs; all fields but Observer must be set. A Config that config.Load has accepted
// gives valid values.
type Config struct {
	// UsersDir holds the users' homes on the host.
	UsersDir string
	// AllowedMountRoots are where further mounts and skills may be on the host; none for nowhere.
	AllowedMountRoots []string
	// OwnPlaces are files and directories of the service, such as its dataDir, its sockets and its keys, which nobody has
	// mounted.
	OwnPlaces []string
	// EventsSocket is the engine's control socket on the host; empty for none.
	EventsSocket string
	// HomeOwners own the homes that the service makes.
	HomeOwners Owners
	// DefaultTimeout is for calls that name none, MaxTimeout the most that one may name.
	DefaultTimeout, MaxTimeout time.Duration
	// MaxAttachedTimeout is the most for a call with a terminal, and its default.
	MaxAttachedTimeout time.Duration
	// KillGrace is the time between SIGTERM and SIGKILL.
	KillGrace time.Duration
	// MaxOutput is how many bytes of each stream a buffered call keeps.
	MaxOutput int64
	// Egress is what calls may name, and MaxDomains how many patterns one may, with its presets'.
	Egress     policy.EgressRules
	MaxDomains int
	// CannotFilter is why no call can be filtered by name, on a host whose operator accepts that; nil
	// where they can.
	CannotFilter error
	// LocalUsers have the profile local, all others the profile isolated.
	LocalUsers map[string]bool
	// Decisions is the log of what egress decided.
	Decisions *decisions.Log
	// Quotas bound what callers have at a time; nil for no bounds.
	Quotas *quota.Ledger
	// Observer is told of execs; nil for none.
	Observer Observer
}

// Loaded is when settings were read, and what has become of it.
type Loaded struct {
	At time.Time
	// Pending are the keys of the settings that need a restart to take effect.
	Pending []string
	// Refused says that they were read again later and could not be used; TokensRefused says it of the tokens.
	Refused, TokensRefused bool
}

// Executor runs commands. *dockerexec.Executor is one.
type Executor interface {
	Run(context.Context, dockerexec.Spec, dockerexec.Command, dockerexec.Output) (dockerexec.Result, error)
	Containers() []dockerexec.Container
	Tmp(ctx context.Context, spec dockerexec.Spec, create bool) (dir string, release func(), err error)
}

// Service does what calls ask for. It is safe for concurrent use.
type Service struct {
	present   *atomic.Pointer[settings] // shared with the parts of it for some users
	loaded    *atomic.Pointer[Loaded]
	registry  *Registry
	platforms *Platforms
	executor  Executor
	log       zerolog.Logger

	processes *process.Manager
	detached  *attach.Store[Result]

	among Users       // for whom its callers act
	token quota.Token // by which they come

	makingHome *sync.Mutex // held while a home is looked for again and made
	allotted   *allotted   // with makingHome
}

// settings are what the operator decides, as of now.
type settings struct {
	Config
	roots []root   // what the operator calls its directories, and where they are
	own   []string // Config.OwnPlaces, and where they really are
}

// root is a directory of the operator's, whose own path may lead over links.
type root struct{ named, real string }

// New puts a Service together; it owns none of its parts. Links in UsersDir and AllowedMountRoots are
// resolved once, here: below them none is followed.
func New(cfg Config, registry *Registry, platforms *Platforms, executor Executor, log zerolog.Logger) *Service {
	s := &Service{
		present: &atomic.Pointer[settings]{}, loaded: &atomic.Pointer[Loaded]{},
		registry: registry, platforms: platforms, executor: executor, log: log,
		detached: attach.NewStore[Result](attach.Config{Quotas: cfg.Quotas, Keep: keepDetached}),
		among:    Everyone(), makingHome: &sync.Mutex{}, allotted: &allotted{},
	}
	s.Use(cfg)
	s.SetLoaded(Loaded{})
	return s
}

// SetLoaded says what Health tells of the settings.
func (s *Service) SetLoaded(l Loaded) { s.loaded.Store(&l) }

// Use has the calls that come from now on go by cfg. UsersDir, Decisions, Quotas and CannotFilter are as they were
// in New. What a container was made with, it keeps: a call for which the settings make a difference gets
// another one.
func (s *Service) Use(cfg Config) {
	next := &settings{Config: cfg}
	for _, named := range append([]string{cfg.UsersDir}, cfg.AllowedMountRoots...) {
		if real, err := filepath.EvalSymlinks(named); err == nil && real != named {
			next.roots = append(next.roots, root{named, real})
		}
	}
	for _, named := range cfg.OwnPlaces {
		next.own = append(next.own, named)
		if real, err := filepath.EvalSymlinks(named); err == nil && real != named {
			next.own = append(next.own, real)
		}
	}
	s.present.Store(next)
}

func (s *Service) cfg() *settings { return s.present.Load() }

// real is a path in one of the operator's directories without the links that lead to that.
func (s *Service) real(path pathmap.HostPath) string {
	name := path.String()
	for _, r := range s.cfg().roots {
		if pathmap.Within(name, r.named) {
			return filepath.Join(r.real, strings.TrimPrefix(name, r.named))
		}
	}
	return name
}

// Registration is what an engine says of a sandbox, as it came.
type Registration struct {
	UserID string
	// WorkingDir is empty for the home. All paths are container paths, or host paths under a mount.
	WorkingDir          string
	WriteDirs, ReadDirs []string
	Network, Events     bool
	AppID               string // empty for an agent that is no app
	Mounts              []MountRequest
	SkillsDir           string // on the host, below one of allowedMountRoots; empty for none
}

// Put registers or replaces a sandbox. Nothing is started.
func (s *Service) Put(id string, r Registration) (_ Sandbox, created bool, _ error) {
	box, err := s.parseRegistration(id, r)
	if err != nil {
		return Sandbox{}, false, err
	}
	if err := s.mayHold(box); err != nil {
		return Sandbox{}, false, err
	}
	return s.registry.Put(box, time.Now().UTC())
}

// Get finds a sandbox.
func (s *Service) Get(id string) (Sandbox, error) {
	parsed, err := ParseID(id)
	if err != nil {
		return Sandbox{}, err
	}
	return s.registry.Get(parsed)
}

// Delete forgets a sandbox; its user's files stay.
func (s *Service) Delete(id string) error {
	parsed, err := ParseID(id)
	if err != nil {
		return err
	}
	return s.registry.Delete(parsed)
}

// List returns the sandboxes by id.
func (s *Service) List() []Sandbox { return s.registry.List() }

// Health is how the service is.
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
	// Warnings tell of what is lost or damaged although commands run.
	Warnings []string
	// Settings are those in force.
	Settings Loaded
}

// Health asks the engine if it has to.
func (s *Service) Health(ctx context.Context) Health {
	h := Health{UsersDir: s.cfg().UsersDir, MaxTimeout: s.cfg().MaxTimeout, Settings: *s.loaded.Load()}
	if s.processes != nil && s.among.All() { // they name others' processes
		h.Warnings = s.processes.Problems()
	}
	if h.Settings.Refused {
		h.Warnings = append(h.Warnings, "the settings were read again and cannot be used: the service's log says why, and those from before stay in force")
	}
	if h.Settings.TokensRefused {
		h.Warnings = append(h.Warnings, "the tokens were read again and cannot be used: the service's log says why, and those from before stay in force")
	}
	present, err := s.platforms.current(ctx)
	if err != nil {
		h.Problem = err.Error()
		return h
	}
	h.Engine, h.Runtime, h.Image, h.ImageVersion = present.engine, present.Runtime, present.ImageID, present.version
	return h
}
