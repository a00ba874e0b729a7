package plan

import (
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/pathmap"
)

// Confinement is the part of a request that decides what its command may see and reach.
type Confinement struct {
	// Permissions are the call's grants, as tags.
	Permissions []string
	// AllowedDomains are patterns of the names that the call wants to reach, PackageManagers the
	// names of presets of such patterns. They need @network.
	AllowedDomains, PackageManagers []string
	Restrictions
	// Home is where HOME points and tools keep their state, a directory that the call may write to.
	// If it is empty, HOME is the home, and state is kept there, or in /tmp if not all of the home
	// can be written.
	Home string
}

// Restrictions take away from what a call or a process would get otherwise. They win over
// everything that it asks for.
type Restrictions struct {
	// DenyRead lists paths that may be neither read nor written, and DenyWrite paths that may not
	// be written, with all below. They are absolute: paths inside, or of the host under a mount.
	// DeniedDomains lists patterns of names that may not be reached. Each has at most 64 entries.
	DenyRead      []string `json:"denyRead,omitempty"`
	DenyWrite     []string `json:"denyWrite,omitempty"`
	DeniedDomains []string `json:"deniedDomains,omitempty"`
}

// Call is a request to a sandbox, with everything that decides about it. It is resolved once and
// passed down, and nobody changes it then.
type Call struct {
	registry.Sandbox
	Confinement
	// Shown is all that the call's containers may show of the host; Paths is a map of it. /tmp has
	// no fixed place on the host.
	Shown   []pathmap.Mount
	Paths   pathmap.Map
	Subject policy.Subject
	// Detached says that its container goes on while no service runs.
	Detached bool

	cfg *Config
}

// Resolve returns a call to a sandbox. The file calls pass an empty Confinement.
func (p *Planner) Resolve(box registry.Sandbox, asked Confinement) (*Call, error) {
	c := &Call{Sandbox: box, Confinement: asked, cfg: p.cfg.Load()}
	home, err := p.rootfs.HomePath(box.User.String())
	if err != nil {
		return nil, err
	}
	c.Shown = []pathmap.Mount{{Host: home, Container: policy.Home}}
	if box.SkillsDir != "" {
		skills, err := pathmap.ParseHost(box.SkillsDir)
		if err != nil {
			return nil, err
		}
		c.Shown = append(c.Shown, pathmap.Mount{Host: skills, Container: policy.Skills})
	}
	c.Subject = policy.Subject{Permissions: box.PolicyPermissions(), HasSkills: box.SkillsDir != "",
		AppRoots: p.registry.AppRoots(box.User)}
	for _, m := range box.Mounts {
		c.Shown = append(c.Shown, pathmap.Mount{Host: m.Source, Container: m.Target})
		c.Subject.Mounts = append(c.Subject.Mounts,
			policy.Mount{Target: m.Target, ReadOnly: m.ReadOnly})
	}
	c.Paths, err = pathmap.New(c.Shown...)
	return c, err
}

// Path parses a path that the caller wrote: an absolute path, in the container or on the host under
// a mount, one below the home that begins with ~/, or one relative to the working directory.
func (c *Call) Path(written string) (pathmap.ContainerPath, error) {
	if written == "~" || strings.HasPrefix(written, "~/") {
		return policy.Home.Resolve("." + written[1:])
	}
	if inside, err := c.Paths.Parse(written); err == nil {
		return inside, nil
	}
	return c.WorkingDir.Resolve(written)
}

// FilePath is Path for a file call: the file may have any name, because its tenant chose it.
func (c *Call) FilePath(written string) (pathmap.ContainerPath, error) {
	if written == "~" || strings.HasPrefix(written, "~/") {
		return policy.Home.ResolveName("." + written[1:])
	}
	path, err := c.WorkingDir.ResolveName(written)
	if err != nil || path.String() != written {
		return path, err
	}
	return c.Paths.Inside(path), nil
}

// Directory parses a path in which a command is to run.
func (c *Call) Directory(written string) (pathmap.ContainerPath, error) {
	cwd, err := c.Path(written)
	if err != nil {
		return cwd, errs.Invalid("cwd: %v", err)
	}
	if !cwd.Within(c.WorkingDir) && !cwd.Within(policy.Tmp) && !c.InMount(cwd) {
		return cwd, errs.Denied(
			"cwd %q is outside of the working directory %s, and neither in /tmp nor in a further mount",
			cwd, c.WorkingDir)
	}
	return cwd, nil
}

// CannotFilter reports whether no call can be filtered by name on this host. A container with a
// network then has all of it from its start.
func (c *Call) CannotFilter() bool { return c.cfg.CannotFilter != nil }
