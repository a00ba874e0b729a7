// Package sandbox is the facade: what an engine registers, and what its calls do. It is the one
// place that fixes the order of checks before anything runs.
//
// registry.go keeps the sandboxes; subject.go and mounts.go read what an engine registers; platform.go
// knows what settings and host decide; home.go finds a user's home; plan.go makes a call's container
// out of policy's decision, ground.go what that needs on the host, and outside.go what it reaches; environment.go builds a
// command's environment, exec.go runs it; files.go, read.go and explain.go answer the other calls.
package sandbox

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/egress/decisions"
	"github.com/daycare-run/sandbox/pathmap"
	"github.com/daycare-run/sandbox/policy"
	"github.com/daycare-run/sandbox/process"
)

// Config is what a Service needs; all fields must be set. A Config that config.Load has accepted
// gives valid values.
type Config struct {
	// UsersDir holds the users' homes on the host.
	UsersDir string
	// AllowedMountRoots are where further mounts and skills may be on the host; none for nowhere.
	AllowedMountRoots []string
	// EventsSocket is the engine's control socket on the host; empty for none.
	EventsSocket string
	// HomeUID and HomeGID own a home that the service makes.
	HomeUID, HomeGID uint32
	// DefaultTimeout is for calls that name none, MaxTimeout the most that one may name.
	DefaultTimeout, MaxTimeout time.Duration
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
}

// Executor runs commands. *dockerexec.Executor is one.
type Executor interface {
	Run(context.Context, dockerexec.Spec, dockerexec.Command, dockerexec.Output) (dockerexec.Result, error)
	Containers() []dockerexec.Container
	Tmp(ctx context.Context, spec dockerexec.Spec, create bool) (dir string, release func(), err error)
}

// Service does what calls ask for. It is safe for concurrent use.
type Service struct {
	cfg       Config
	registry  *Registry
	platforms *Platforms
	executor  Executor
	log       zerolog.Logger

	roots []root // what the operator calls its directories, and where they are

	processes *process.Manager

	makingHome sync.Mutex // held while a home is looked for again and made
}

// root is a directory of the operator's, whose own path may lead over links.
type root struct{ named, real string }

// New puts a Service together; it owns none of its parts. Links in UsersDir and AllowedMountRoots are
// resolved once, here: below them none is followed.
func New(cfg Config, registry *Registry, platforms *Platforms, executor Executor, log zerolog.Logger) *Service {
	s := &Service{cfg: cfg, registry: registry, platforms: platforms, executor: executor, log: log}
	for _, named := range append([]string{cfg.UsersDir}, cfg.AllowedMountRoots...) {
		if real, err := filepath.EvalSymlinks(named); err == nil && real != named {
			s.roots = append(s.roots, root{named, real})
		}
	}
	return s
}

// real is a path in one of the operator's directories without the links that lead to that.
func (s *Service) real(path pathmap.HostPath) string {
	name := path.String()
	for _, r := range s.roots {
		if within(name, r.named) {
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

// List returns all sandboxes by id.
func (s *Service) List() []Sandbox { return s.registry.List() }

// Containers lists the warm containers by name.
func (s *Service) Containers() []dockerexec.Container { return s.executor.Containers() }

// Health is how the service is.
type Health struct {
	// Engine, Runtime, Image and ImageVersion are known when Problem is empty.
	Engine       string
	Runtime      string
	Image        string
	ImageVersion string
	// Problem says why commands cannot run now, and what to do about it.
	Problem string
	// Warnings tell of what is lost or damaged although commands run.
	Warnings []string
}

// Health asks the engine if it has to.
func (s *Service) Health(ctx context.Context) Health {
	var warnings []string
	if s.processes != nil {
		warnings = s.processes.Problems()
	}
	present, err := s.platforms.current(ctx)
	if err != nil {
		return Health{Problem: err.Error(), Warnings: warnings}
	}
	return Health{Engine: present.engine, Runtime: present.Runtime, Image: present.ImageID, ImageVersion: present.version, Warnings: warnings}
}
