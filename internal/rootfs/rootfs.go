// Package rootfs decides what the filesystem of a container is made of, and prepares the host for
// it. A Planner turns a view of policy into the mounts, masks, pins and links of a dockerexec.Spec.
// A Preparer makes the mount points that a Spec needs on the host, and expels containers whose
// masks no longer cover what they were put on. The package knows nothing of calls, requests and
// records.
package rootfs

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// Config is what a Planner needs.
type Config struct {
	// UsersDir holds the users' homes on the host.
	UsersDir string
	// AllowedMountRoots are the host directories in which further mounts and skills may be; empty
	// for nowhere.
	AllowedMountRoots []string
	// OwnPlaces are the service's own files and directories, such as its dataDir, its sockets and
	// its keys, which are never mounted.
	OwnPlaces []string
	// EventsSocket is the caller's control socket on the host; empty for none.
	EventsSocket string
	// HomeOwners says who owns new homes.
	HomeOwners Owners
	// ClaimOwner claims an id for a user's home, and reports false if it is another's. It is nil
	// unless several hosts make homes.
	ClaimOwner func(id uint32, user string) (bool, error)
}

// Planner plans what containers see of the host. It is safe for concurrent use.
type Planner struct {
	present atomic.Pointer[settings]
	log     zerolog.Logger
	walks   *hostfs.Walks

	questions questions
	empty     emptyDirs

	making   sync.Mutex // held while makeHome checks for a home and makes it
	allotted allotted   // under making
}

// settings are a Config with its links resolved.
type settings struct {
	Config
	links []link   // the operator's directories that are links, or behind one
	own   []string // Config.OwnPlaces, and where they really are
}

// link is a directory of the operator's whose path leads through links.
type link struct{ named, real string }

// NewPlanner returns a Planner. Links in UsersDir and AllowedMountRoots are resolved here and in
// Use: below these directories no link is followed.
func NewPlanner(cfg Config, log zerolog.Logger) *Planner {
	p := &Planner{log: log, walks: hostfs.NewWalks()}
	p.Use(cfg)
	return p
}

// Use replaces the Config for later plans. UsersDir must be that of NewPlanner.
func (p *Planner) Use(cfg Config) {
	next := &settings{Config: cfg}
	for _, named := range append([]string{cfg.UsersDir}, cfg.AllowedMountRoots...) {
		if real, err := filepath.EvalSymlinks(named); err == nil && real != named {
			next.links = append(next.links, link{named, real})
		}
	}
	for _, named := range cfg.OwnPlaces {
		next.own = append(next.own, named)
		if real, err := filepath.EvalSymlinks(named); err == nil && real != named {
			next.own = append(next.own, real)
		}
	}
	p.present.Store(next)
}

func (p *Planner) cfg() *settings { return p.present.Load() }

// real resolves the links that lead to one of the operator's directories, in a path that is in that
// directory.
func (p *Planner) real(path pathmap.HostPath) string {
	name := path.String()
	for _, l := range p.cfg().links {
		if pathmap.Within(name, l.named) {
			return filepath.Join(l.real, strings.TrimPrefix(name, l.named))
		}
	}
	return name
}

// ProcessDir returns the folder of a durable process. It lies next to the user's home, on the same
// disk: what fills it is the tenant's own.
func (p *Planner) ProcessDir(user, id string) string {
	return filepath.Join(p.UserDir(user), processesDir, id)
}

// MakeProcessesDir makes the folder that holds those of a user's durable processes, if it is
// missing.
func (p *Planner) MakeProcessesDir(user string) (dir string, err error) {
	dir = filepath.Dir(p.ProcessDir(user, "any"))
	return dir, os.MkdirAll(dir, 0o711)
}

// UserDir returns the folder of a user, which holds the home.
func (p *Planner) UserDir(user string) string { return filepath.Join(p.UsersDir(), user) }

// UsersDir returns the folder of all users.
func (p *Planner) UsersDir() string { return p.cfg().UsersDir }

// ProcessDirs returns the folders of all durable processes, relative to UsersDir.
func (p *Planner) ProcessDirs() (folders []string, err error) {
	names, err := filepath.Glob(
		filepath.Join(hostfs.EscapeGlob(p.UsersDir()), "*", processesDir, "*"))
	for _, name := range names {
		folders = append(folders, strings.TrimPrefix(name, p.UsersDir()+"/"))
	}
	return folders, err
}

// HomePath returns the host path of a user's home.
func (p *Planner) HomePath(user string) (pathmap.HostPath, error) {
	return pathmap.ParseHost(filepath.Join(p.UserDir(user), "home"))
}

// InUserDir reports whether a host path really lies in a user's folder.
func (p *Planner) InUserDir(user string, path pathmap.HostPath) bool {
	folder, err := pathmap.ParseHost(p.UserDir(user))
	return err == nil && pathmap.Within(p.real(path), p.real(folder))
}

// SamePlaces returns all places at which mounts show what they show at paths.
func (p *Planner) SamePlaces(mounts []pathmap.Mount,
	paths []pathmap.ContainerPath) []pathmap.ContainerPath {
	var all []pathmap.ContainerPath
	for _, path := range paths {
		for _, m := range mounts {
			if m.Container.Within(path) {
				all = append(all, p.shownAt(mounts, p.real(m.Host))...)
			} else if rest, ok := pathmap.CutDir(path.String(), m.Container.String()); ok {
				all = append(all, p.shownAt(mounts, filepath.Join(p.real(m.Host), rest))...)
			}
		}
	}
	return all
}

// shownAt returns the places at which mounts show a host path, or something in it.
func (p *Planner) shownAt(mounts []pathmap.Mount, host string) []pathmap.ContainerPath {
	var all []pathmap.ContainerPath
	for _, m := range mounts {
		if rest, ok := pathmap.CutDir(host, p.real(m.Host)); ok {
			if inside, err := m.Container.Resolve("./" + rest); err == nil {
				all = append(all, inside)
			}
		} else if pathmap.Within(p.real(m.Host), host) {
			all = append(all, m.Container)
		}
	}
	return all
}

// deniedInHome lists the paths of a home that cannot be reached by another name either.
var deniedInHome = policy.DeniedInHome()
