// Package sandbox is the facade: what an engine registers, and what its calls do. It is the one
// place that fixes the order of checks before anything runs.
//
// registry.go keeps the sandboxes, platform.go knows what settings and host decide, home.go finds a
// user's home, environment.go builds a command's environment, exec.go runs it.
package sandbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/pathmap"
)

// Config is what a Service needs; all fields must be set. A Config that config.Load has accepted
// gives valid values.
type Config struct {
	// UsersDir holds the users' homes on the host.
	UsersDir string
	// HomeUID and HomeGID own a home that the service makes.
	HomeUID, HomeGID uint32
	// DefaultTimeout is for calls that name none, MaxTimeout the most that one may name.
	DefaultTimeout, MaxTimeout time.Duration
	// KillGrace is the time between SIGTERM and SIGKILL.
	KillGrace time.Duration
	// MaxOutput is how many bytes of each stream a buffered call keeps.
	MaxOutput int64
}

// Executor runs commands. *dockerexec.Executor is one.
type Executor interface {
	Run(context.Context, dockerexec.Spec, dockerexec.Command, dockerexec.Output) (dockerexec.Result, error)
	Containers() []dockerexec.Container
}

// Service does what calls ask for. It is safe for concurrent use.
type Service struct {
	cfg       Config
	registry  *Registry
	platforms *Platforms
	executor  Executor
	log       zerolog.Logger

	makingHome sync.Mutex // held while a home is looked for again and made
}

// New puts a Service together; it owns none of its parts.
func New(cfg Config, registry *Registry, platforms *Platforms, executor Executor, log zerolog.Logger) *Service {
	return &Service{cfg: cfg, registry: registry, platforms: platforms, executor: executor, log: log}
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
	user, err := ParseUserID(r.UserID)
	if err != nil {
		return Sandbox{}, false, err
	}
	parsed, err := ParseID(id)
	if err != nil {
		return Sandbox{}, false, err
	}
	if r.WorkingDir == "" {
		r.WorkingDir = containerHome
	}
	home, err := pathmap.ParseContainer(containerHome)
	if err != nil {
		return Sandbox{}, false, err
	}
	dir, err := s.containerPath(user, home, r.WorkingDir)
	if err != nil {
		return Sandbox{}, false, invalid("permissions.workingDir: %v", err)
	}
	if !dir.Within(home) {
		return Sandbox{}, false, denied("permissions.workingDir %q is outside of %s", dir, home)
	}
	return s.registry.Put(Sandbox{ID: parsed, User: user, WorkingDir: dir}, time.Now().UTC())
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
}

// Health asks the engine if it has to.
func (s *Service) Health(ctx context.Context) Health {
	present, err := s.platforms.current(ctx)
	if err != nil {
		return Health{Problem: err.Error()}
	}
	return Health{Engine: present.engine, Runtime: present.Runtime, Image: present.ImageID, ImageVersion: present.version}
}

// paths maps between the host and a user's containers.
func (s *Service) paths(user UserID) (pathmap.Map, error) {
	host, err := pathmap.ParseHost(s.cfg.UsersDir + "/" + user.id + "/home")
	if err != nil {
		return pathmap.Map{}, err
	}
	inside, err := pathmap.ParseContainer(containerHome)
	if err != nil {
		return pathmap.Map{}, err
	}
	return pathmap.New(pathmap.Mount{Host: host, Container: inside})
}

// containerPath reads what a caller wrote: a path relative to base, a container path, or a host path
// in the user's home, which means the same place.
func (s *Service) containerPath(user UserID, base pathmap.ContainerPath, written string) (pathmap.ContainerPath, error) {
	if host, err := pathmap.ParseHost(written); err == nil {
		paths, err := s.paths(user)
		if err != nil {
			return pathmap.ContainerPath{}, err
		}
		if inside, err := paths.ToContainer(host); err == nil {
			return inside, nil
		}
	}
	path, err := base.Resolve(written)
	if err != nil {
		return pathmap.ContainerPath{}, fmt.Errorf("%q is not a path: %w", written, err)
	}
	return path, nil
}
