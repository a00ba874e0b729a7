package plan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/pathmap"
)

// PersistentHome is where HOME points in a persistent sandbox: a directory of its user's home.
const PersistentHome = "/home/user"

// Persistent is what a persistent sandbox is made of, besides its registration.
type Persistent struct {
	// Image is a reference to an image that Docker has; empty for the service's own.
	Image string
	// CPUs and Memory, in bytes, are at most those of the settings; 0 means the same as the
	// settings.
	CPUs   float64
	Memory int64
	// Root lets commands run as root, if the runtime is gVisor.
	Root bool
	// Env has the variables of every command; later ones win.
	Env []map[string]string
	// NoNetwork means no network interface at all. Otherwise, Allow and Deny are patterns of names,
	// and AllowAddresses and DenyAddresses are addresses and ranges. If nothing is allowed, nothing
	// can be reached.
	NoNetwork                     bool
	Allow, Deny                   []string
	PackageManagers               []string // names of presets, beside Allow
	AllowAddresses, DenyAddresses []string
}

// Shape is what distinguishes the containers of persistent sandboxes, apart from whose they are and
// what they may reach. The fields are those of Persistent.
type Shape struct {
	Image  string  `json:"image,omitempty"`
	CPUs   float64 `json:"cpus,omitempty"`
	Memory int64   `json:"memory,omitempty"`
	Root   bool    `json:"root,omitempty"`
}

// Shape returns the shape of the sandbox's container.
func (l Persistent) Shape() Shape { return Shape{l.Image, l.CPUs, l.Memory, l.Root} }

// PersistentConfinement is what a persistent sandbox asks for: all of its home.
var PersistentConfinement = Confinement{Permissions: []string{policy.TagWorkspace},
	Home: PersistentHome}

// AllowsRoot reports whether commands of persistent sandboxes may run as root now: under gVisor, in
// those that are created while they may.
func (p *Planner) AllowsRoot() bool { return p.cfg.Load().Root }

// DecidePersistent decides about a persistent sandbox.
func (p *Planner) DecidePersistent(box registry.Sandbox, l Persistent) (Decided, error) {
	for _, variables := range l.Env {
		if err := CheckVariables("env", variables); err != nil {
			return Decided{}, err
		}
	}
	c, err := p.Resolve(box, PersistentConfinement)
	if err != nil {
		return Decided{}, err
	}
	egress, err := p.PersistentEgress(box, l)
	if err != nil {
		return Decided{}, err
	}
	d, err := p.DecideView(c)
	d.Egress = egress
	return d, err
}

// PlanPersistent plans the container of a persistent sandbox. The user's whole home is mounted,
// with nothing hidden in it, because it is the sandbox's own. The root filesystem is the
// container's.
func (p *Planner) PlanPersistent(ctx context.Context, d Decided, id string, l Shape) (Plan, error) {
	made, err := p.Plan(ctx, d, false)
	if err != nil {
		return Plan{}, err
	}
	if made.platform, err = p.PersistentPlatform(ctx, l); err != nil {
		return Plan{}, err
	}
	accounts, err := made.platform.overrides.AccountsAt(made.Spec.UID, made.Spec.GID,
		PersistentHome)
	if err != nil {
		return Plan{}, err
	}
	spec := &made.Spec
	spec.Persistent, spec.Passwd, spec.Group, spec.Platform = id, accounts.Passwd, accounts.Group,
		made.platform.Platform
	spec.Masks, spec.Pins, spec.Links = nil, nil, nil
	if spec.Root = l.Root && made.platform.isGVisor(spec.Runtime()); spec.Root && !spec.IsPooled() {
		// What root leaves in its home may run as root for whoever starts it, so no user of the
		// host may reach it.
		if err := p.rootfs.CloseUserDir(spec.User); err != nil {
			return Plan{}, fmt.Errorf("cannot close the folder of user %q: %w", spec.User,
				errs.WithoutPath(err))
		}
	}
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), func(m dockerexec.Mount) bool {
		return m.Target != policy.Home.String()
	})
	return made, nil
}

// PlanHeld plans the persistent container of a registered sandbox, with all that the sandbox holds.
// id is the container's. A dry run makes nothing.
func (p *Planner) PlanHeld(ctx context.Context, box registry.Sandbox, id string,
	dryRun bool) (Plan, error) {
	c, err := p.Resolve(box, Confinement{})
	if err != nil {
		return Plan{}, err
	}
	c.Detached = true
	p.decisions.Add(1)
	d := Decided{Call: c, Decision: c.Subject.DecideAll()}
	if d.Egress, err = p.PersistentEgress(box, Persistent{NoNetwork: !box.Network,
		Allow: box.Domains, PackageManagers: box.Presets}); err != nil {
		return Plan{}, err
	}
	made, err := p.Plan(ctx, d, dryRun)
	if err != nil || dryRun {
		return made, err
	}
	made.Spec.Persistent = id
	if made.Spec.Process.Dir, err = p.rootfs.MakeProcessesDir(box.User.String()); err != nil {
		err = fmt.Errorf("cannot make the folder of the user's processes: %w",
			errs.WithoutPath(err))
	}
	return made, err
}

// Held returns what a registered sandbox holds that its containers are made with, as a
// hash: what it was registered with but for names, and the apps of the user that it does not see.
func (p *Planner) Held(box registry.Sandbox) (string, error) {
	c, err := p.Resolve(box, Confinement{})
	if err != nil {
		return "", err
	}
	return c.Held(), nil
}

// Held returns what the call's sandbox holds, as Planner.Held does.
func (c *Call) Held() string {
	sum := sha256.New()
	line := func(parts ...any) { fmt.Fprintf(sum, "%q\n", parts) }
	line(c.WorkingDir.String(), c.Network, c.Events, c.AppID)
	for _, list := range [][]pathmap.ContainerPath{c.WriteDirs, c.ReadDirs, c.Subject.AppRoots} {
		for _, dir := range list {
			line(dir.String())
		}
		line()
	}
	for _, m := range c.Shown {
		line(m.Host.String(), m.Container.String())
	}
	for _, m := range c.Mounts {
		line(m.Target.String(), m.ReadOnly)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// PersistentEnvironment returns the environment of all commands of a persistent sandbox.
func (p Plan) PersistentEnvironment(given ...map[string]string) map[string]string {
	who := map[string]string{"USER": images.AccountName, "LOGNAME": images.AccountName}
	env := map[string]string{}
	for _, entry := range p.Environment(slices.Concat([]map[string]string{who}, given)...) {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return env
}

// PersistentPlatform returns the present platform for containers of a shape.
func (p *Planner) PersistentPlatform(ctx context.Context, l Shape) (made Platform, err error) {
	if l.Image == "" {
		made, err = p.platforms.Present(ctx)
	} else {
		made, err = p.platforms.of(ctx, l.Image)
	}
	if err != nil {
		return made, err
	}
	made.ReadOnlyRoot = false
	made.Limits, err = l.limits(made.Limits)
	return made, err
}

// PersistentLimits returns the limits that a persistent sandbox would have. The error says why
// there can be none.
func (p *Planner) PersistentLimits(ctx context.Context, l Shape) (dockerexec.Limits, error) {
	made, err := p.PersistentPlatform(ctx, l)
	return made.Limits, err
}

func (l Shape) limits(limit dockerexec.Limits) (dockerexec.Limits, error) {
	nanoCPUs := int64(l.CPUs * 1e9)
	switch {
	case l.CPUs < 0 || l.Memory < 0:
		return limit, errs.Invalid("cpus %v and memory %d must not be negative", l.CPUs, l.Memory)
	case limit.NanoCPUs > 0 && nanoCPUs > limit.NanoCPUs:
		return limit,
			errs.Invalid(
				"%v CPUs are more than a container may have, which is %v (limits.cpus, or what the host has)",
				l.CPUs, float64(limit.NanoCPUs)/1e9)
	case limit.Memory > 0 && l.Memory > limit.Memory:
		return limit,
			errs.Invalid(
				"%d bytes of memory are more than a container may have, which is %d (limits.memory)",
				l.Memory, limit.Memory)
	}
	if nanoCPUs > 0 {
		limit.NanoCPUs = nanoCPUs
	}
	if l.Memory > 0 {
		limit.Memory = l.Memory
		limit.VarTmp = min(limit.VarTmp, l.Memory/2)
	}
	return limit, nil
}

// PersistentEgress returns what a persistent sandbox may reach. As for calls, the operator's rules
// decide.
func (p *Planner) PersistentEgress(box registry.Sandbox, l Persistent) (dockerexec.Egress, error) {
	if l.NoNetwork {
		return dockerexec.Egress{}, nil
	}
	if _, err := policy.ParseRanges(l.AllowAddresses, l.DenyAddresses); err != nil {
		return dockerexec.Egress{}, err
	}
	cfg := p.cfg.Load()
	asked := Call{Sandbox: box, cfg: cfg,
		Confinement: Confinement{AllowedDomains: l.Allow, PackageManagers: l.PackageManagers,
			Restrictions: Restrictions{DeniedDomains: l.Deny}}}
	reach := dockerexec.Egress{Profile: asked.profile(), Domains: []string{}, Denied: []string{}} // a network on which nothing is reached
	if len(l.Allow)+len(l.PackageManagers) > 0 {
		var err error
		if reach, err = asked.egress(true); err != nil {
			return dockerexec.Egress{}, err
		}
	}
	if len(l.AllowAddresses) == 0 {
		return reach, nil
	}
	if cfg.CannotFilter != nil {
		return dockerexec.Egress{},
			errs.Denied("this host cannot restrict a sandbox to addresses (%v)", cfg.CannotFilter)
	}
	reach.Addresses, reach.DeniedAddresses = l.AllowAddresses, l.DenyAddresses
	return reach, nil
}
