// Package plan turns a call into what its container is made of. A Call is a request to a registered
// sandbox, with its paths; Decide asks policy about it, once; and Plan makes that concrete on this
// host: the Spec of a container, whose filesystem rootfs plans, with the platform of the moment.
// Calls are planned for the facade, and for whatever starts processes again by itself.
package plan

import (
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/egress/authority"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/pathmap"
)

// Config is what the operator's settings say about what calls may reach.
type Config struct {
	// Egress says what calls may name.
	Egress policy.EgressRules
	// MaxDomains is how many patterns one call may have, including those of its presets.
	MaxDomains int
	// CannotFilter is why no call can be filtered by name, on a host whose operator accepts that;
	// nil where calls can be.
	CannotFilter error
	// LocalUsers have the profile local, all others the profile isolated.
	LocalUsers map[string]bool
	// Credentials are the registered ones, and Authority is what containers trust that have some. Nil
	// if there are none.
	Credentials *credential.Store
	Authority   *authority.Authority
	// Root lets commands of persistent sandboxes run as root.
	Root bool
}

// Planner decides about calls and plans their containers. It is safe for concurrent use.
type Planner struct {
	cfg       atomic.Pointer[Config]
	registry  *registry.Registry
	rootfs    *rootfs.Planner
	platforms *Platforms
	log       zerolog.Logger

	decisions, plans atomic.Uint64
}

// NewPlanner returns a Planner of calls to the sandboxes of a registry; it owns none of these
// parts.
func NewPlanner(sandboxes *registry.Registry, cfg Config, files *rootfs.Planner,
	platforms *Platforms, log zerolog.Logger) *Planner {
	p := &Planner{registry: sandboxes, rootfs: files, platforms: platforms, log: log}
	p.cfg.Store(&cfg)
	return p
}

// Use replaces the Config for later calls. CannotFilter must be that of NewPlanner. A container
// keeps what it was made with: a call for which the settings make a difference gets another one.
func (p *Planner) Use(cfg Config) { p.cfg.Store(&cfg) }

// Sandboxes returns the registry of all sandboxes.
func (p *Planner) Sandboxes() *registry.Registry { return p.registry }

// Files returns what plans filesystems.
func (p *Planner) Files() *rootfs.Planner { return p.rootfs }

// Platforms returns what containers run on.
func (p *Planner) Platforms() *Platforms { return p.platforms }

// Counts returns how often policy has decided about a call, and how many containers were planned.
func (p *Planner) Counts() (decisions, plans uint64) { return p.decisions.Load(), p.plans.Load() }

// Decided is a call with what policy says about it.
type Decided struct {
	*Call
	policy.Decision
	// Grants are what the call's tags ask for.
	Grants policy.Grants
	// Egress is what the call may reach.
	Egress dockerexec.Egress
	// Credentials are those that it asks for, by name.
	Credentials []credential.Credential
}

// Decide returns what policy lets a call see, do and reach.
func (p *Planner) Decide(c *Call) (Decided, error) {
	d, err := p.DecideView(c)
	if err != nil {
		return Decided{}, err
	}
	if d.Egress, err = c.egress(d.Decision.Network); err != nil {
		return Decided{}, err
	}
	d.Credentials, err = c.credentials(d.Decision.Secrets)
	return d, err
}

// DecideView is Decide without what the call may reach: for a file call, or for what has its names
// from elsewhere.
func (p *Planner) DecideView(c *Call) (d Decided, err error) {
	p.decisions.Add(1)
	d.Call = c
	if d.Grants, err = policy.ParseTags(c.Permissions, c.Paths); err != nil {
		return Decided{}, err
	}
	d.Decision, err = c.Subject.Decide(d.Grants)
	if err == nil && len(c.DenyRead)+len(c.DenyWrite) > 0 {
		err = p.restrict(&d)
	}
	return d, err
}

// restrict takes from a decision what its call gives up.
func (p *Planner) restrict(d *Decided) error {
	c := d.Call
	named, err := policy.ParseRestrictions(c.DenyRead, c.DenyWrite, c.Paths)
	if err != nil {
		return err
	}
	followed, err := p.follow(c, &named)
	if err != nil {
		return err
	}
	if d.View, err = c.Subject.Restrict(d.View, named); err != nil {
		return err
	}
	elsewhere := policy.Restrictions{DenyRead: p.rootfs.SamePlaces(c.Shown, named.DenyRead),
		DenyWrite: p.rootfs.SamePlaces(c.Shown, named.DenyWrite)}
	if d.View, err = c.Subject.Restrict(d.View, elsewhere); err != nil {
		return errs.Invalid("a denied path is also shown at another place by the mounts; there: %v",
			err)
	}
	d.Symlinks, err = followed.kept(p, c, d.View)
	return err
}

// Source parses a host path that a caller wants to have mounted.
func (p *Planner) Source(field, written string) (pathmap.HostPath, error) {
	source, err := pathmap.ParseHost(written)
	if err != nil {
		return source, errs.Invalid("%s: %v", field, err)
	}
	return source, p.rootfs.CheckSource(field, source)
}
