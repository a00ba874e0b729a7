package sandbox

import (
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/pathmap"
)

// Confinement is the part of a request that decides what its command may see and reach.
type Confinement struct {
	// Permissions are the call's grants, as tags.
	Permissions []string
	// AllowedDomains are patterns of the names that the call wants to reach, PackageManagers the names of
	// presets of such patterns. They need @network.
	AllowedDomains, PackageManagers []string
	process.Restrictions
	// Home is where HOME points and tools keep their state, a directory that the call may write to. If it is
	// empty, HOME is the home, and state is kept there, or in /tmp if not all of the home can be written.
	Home string
}

// Resolver finds out what calls mean: which sandbox, which paths, and what policy decides about them. It is safe for
// concurrent use.
type Resolver struct {
	present   atomic.Pointer[Config]
	registry  *registry
	rootfs    *rootfs.Planner
	platforms *Platforms
	log       zerolog.Logger
}

// OpenResolver returns a Resolver of the sandboxes whose records are under dir, which it makes. A record that cannot be
// read is set aside as <name>.damaged and logged; the others load.
func OpenResolver(dir string, cfg Config, planner *rootfs.Planner, platforms *Platforms, log zerolog.Logger) (*Resolver, error) {
	registry, err := openRegistry(dir, cfg.Quotas, log)
	if err != nil {
		return nil, err
	}
	return resolverOf(registry, cfg, planner, platforms, log), nil
}

// ShareResolver returns a Resolver of a cluster's sandboxes. There are none until Apply adds them.
func ShareResolver(shared Records, cfg Config, planner *rootfs.Planner, platforms *Platforms, log zerolog.Logger) *Resolver {
	return resolverOf(openShared(shared, cfg.Quotas), cfg, planner, platforms, log)
}

func resolverOf(registry *registry, cfg Config, planner *rootfs.Planner, platforms *Platforms, log zerolog.Logger) *Resolver {
	r := &Resolver{registry: registry, rootfs: planner, platforms: platforms, log: log}
	r.present.Store(&cfg)
	return r
}

// Apply updates a sandbox from its shared record and that record's revision; a nil text means that it was removed.
func (r *Resolver) Apply(id string, text []byte, revision int64) {
	if err := r.registry.apply(id, text, revision); err != nil {
		r.log.Error().Err(err).Msg("cannot use the shared record of a sandbox")
	}
}

// Use replaces the Config for later calls. Decisions, Quotas and CannotFilter must be those of OpenResolver.
// A container keeps what it was made with: a call for which the settings make a difference gets another one.
func (r *Resolver) Use(cfg Config) { r.present.Store(&cfg) }

func (r *Resolver) cfg() *Config { return r.present.Load() }

// call is a request to a sandbox, with everything that decides about it. It is resolved once and passed down.
type call struct {
	Sandbox
	Confinement
	cfg     *Config
	mounts  []pathmap.Mount
	paths   pathmap.Map // of mounts: all that its containers show except /tmp, which has no fixed place on the host
	subject policy.Subject
}

// resolve returns a call to a sandbox. The file calls pass an empty Confinement.
func (r *Resolver) resolve(box Sandbox, asked Confinement) (*call, error) {
	c := &call{Sandbox: box, Confinement: asked, cfg: r.cfg()}
	home, err := r.rootfs.HomePath(box.User.String())
	if err != nil {
		return nil, err
	}
	c.mounts = []pathmap.Mount{{Host: home, Container: policy.Home}}
	if box.SkillsDir != "" {
		skills, err := pathmap.ParseHost(box.SkillsDir)
		if err != nil {
			return nil, err
		}
		c.mounts = append(c.mounts, pathmap.Mount{Host: skills, Container: policy.Skills})
	}
	c.subject = policy.Subject{Permissions: box.permissions(), HasSkills: box.SkillsDir != "", AppRoots: r.registry.AppRoots(box.User)}
	for _, m := range box.Mounts {
		c.mounts = append(c.mounts, pathmap.Mount{Host: m.Source, Container: m.Target})
		c.subject.Mounts = append(c.subject.Mounts, policy.Mount{Target: m.Target, ReadOnly: m.ReadOnly})
	}
	c.paths, err = pathmap.New(c.mounts...)
	return c, err
}

// path parses a path that the caller wrote: an absolute path, in the container or on the host under a mount,
// one below the home that begins with ~/, or one relative to the working directory.
func (c *call) path(written string) (pathmap.ContainerPath, error) {
	return resolvePath(c.paths, c.WorkingDir, written)
}

// filePath is path for a file call: the file may have any name, because its tenant chose it.
func (c *call) filePath(written string) (pathmap.ContainerPath, error) {
	if written == "~" || strings.HasPrefix(written, "~/") {
		return policy.Home.ResolveName("." + written[1:])
	}
	path, err := c.WorkingDir.ResolveName(written)
	if err != nil || path.String() != written {
		return path, err
	}
	return c.paths.Inside(path), nil
}

func resolvePath(paths pathmap.Map, base pathmap.ContainerPath, written string) (pathmap.ContainerPath, error) {
	if written == "~" || strings.HasPrefix(written, "~/") {
		return policy.Home.Resolve("." + written[1:])
	}
	if inside, err := paths.Parse(written); err == nil {
		return inside, nil
	}
	return base.Resolve(written)
}

// decide returns what policy lets the call see and do.
func (r *Resolver) decide(c *call) (policy.Decision, error) {
	grants, err := policy.ParseTags(c.Permissions, c.paths)
	if err != nil {
		return policy.Decision{}, err
	}
	decision, err := c.subject.Decide(grants)
	if err != nil || len(c.DenyRead)+len(c.DenyWrite) == 0 {
		return decision, err
	}
	named, err := policy.ParseRestrictions(c.DenyRead, c.DenyWrite, c.paths)
	if err != nil {
		return policy.Decision{}, err
	}
	followed, err := r.follow(c, &named)
	if err != nil {
		return policy.Decision{}, err
	}
	if decision.View, err = c.subject.Restrict(decision.View, named); err != nil {
		return policy.Decision{}, err
	}
	elsewhere := policy.Restrictions{DenyRead: r.rootfs.SamePlaces(c.mounts, named.DenyRead), DenyWrite: r.rootfs.SamePlaces(c.mounts, named.DenyWrite)}
	if decision.View, err = c.subject.Restrict(decision.View, elsewhere); err != nil {
		return policy.Decision{}, errs.Invalid("a denied path is also shown at another place by the mounts; there: %v", err)
	}
	decision.Symlinks, err = followed.kept(r, c, decision.View)
	return decision, err
}
