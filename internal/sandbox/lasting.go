package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/images"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/quota"
)

// LastingHome is where HOME points in a sandbox that lasts: a directory of its user's home.
const LastingHome = "/home/user"

// Lasting is what a sandbox that lasts is made of, besides its registration.
type Lasting struct {
	// Image is a reference to an image that Docker has; empty for the service's own.
	Image string
	// CPUs and Memory, in bytes, are at most those of the settings; 0 means the same as the settings.
	CPUs   float64
	Memory int64
	// Root lets commands run as root, if the runtime is gVisor.
	Root bool
	// Env has the variables of every command; later ones win.
	Env []map[string]string
	// NoNetwork means no network interface at all. Otherwise, Allow and Deny are patterns of names, and
	// AllowAddresses and DenyAddresses are addresses and ranges. If nothing is allowed, nothing can be reached.
	NoNetwork                     bool
	Allow, Deny                   []string
	AllowAddresses, DenyAddresses []string
}

// PlanLasting returns the Spec of the container of a sandbox that lasts, and its commands' environment. The user's whole home
// is mounted, with nothing hidden in it, because it is the sandbox's own. The root filesystem is the container's.
func (s *Service) PlanLasting(ctx context.Context, id string, l Lasting) (dockerexec.Spec, map[string]string, error) {
	for _, variables := range l.Env {
		if err := checkVariables("env", variables); err != nil {
			return dockerexec.Spec{}, nil, err
		}
	}
	c, err := s.call(id, lastingConfinement)
	if err != nil {
		return dockerexec.Spec{}, nil, err
	}
	egress, err := s.lastingEgress(c, l)
	if err != nil {
		return dockerexec.Spec{}, nil, err
	}
	p, err := s.resolver.plan(ctx, c, false)
	if err == nil {
		err = s.resolver.makeLasting(ctx, &p, id, l.shape())
	}
	if err != nil {
		return dockerexec.Spec{}, nil, err
	}
	p.spec.Egress = egress
	env := map[string]string{}
	who := map[string]string{"USER": images.AccountName, "LOGNAME": images.AccountName}
	for _, entry := range p.environment(append([]map[string]string{who}, l.Env...)...) {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	return p.spec, env, nil
}

// lastingConfinement is what a sandbox that lasts asks for: all of its home.
var lastingConfinement = Confinement{Permissions: []string{policy.TagWorkspace}, Home: LastingHome}

// lastingShape is what distinguishes the containers of sandboxes that last, apart from whose they are and what they may reach.
type lastingShape struct {
	// Image, CPUs, Memory and Root are those of Lasting.
	Image  string  `json:"image,omitempty"`
	CPUs   float64 `json:"cpus,omitempty"`
	Memory int64   `json:"memory,omitempty"`
	Root   bool    `json:"root,omitempty"`
}

func (l Lasting) shape() lastingShape { return lastingShape{l.Image, l.CPUs, l.Memory, l.Root} }

// makeLasting turns a plan into that of a sandbox that lasts.
func (r *Resolver) makeLasting(ctx context.Context, p *plan, id string, l lastingShape) (err error) {
	if p.platform, err = r.lastingPlatform(ctx, l); err != nil {
		return err
	}
	accounts, err := p.platform.overrides.AccountsAt(p.spec.UID, p.spec.GID, LastingHome)
	if err != nil {
		return err
	}
	spec := &p.spec
	spec.Lasting, spec.Passwd, spec.Group, spec.Platform = id, accounts.Passwd, accounts.Group, p.platform.Platform
	spec.Masks, spec.Pins, spec.Links = nil, nil, nil
	if spec.Root = l.Root && p.platform.isGVisor(spec.Runtime()); spec.Root && !spec.IsPooled() {
		// What root leaves in its home may run as root for whoever starts it, so no user of the host may reach it.
		if err := r.rootfs.CloseUserDir(spec.User); err != nil {
			return fmt.Errorf("cannot close the folder of user %q: %w", spec.User, errs.WithoutPath(err))
		}
	}
	spec.Mounts = slices.DeleteFunc(slices.Clone(spec.Mounts), func(m dockerexec.Mount) bool { return m.Target != policy.Home.String() })
	return nil
}

// lastingPlatform returns the present platform for containers of a shape.
func (r *Resolver) lastingPlatform(ctx context.Context, l lastingShape) (p platform, err error) {
	if l.Image == "" {
		p, err = r.platforms.current(ctx)
	} else {
		p, err = r.platforms.of(ctx, l.Image)
	}
	if err != nil {
		return p, err
	}
	p.ReadOnlyRoot = false
	p.Limits, err = l.limits(p.Limits)
	return p, err
}

// LastingLimits returns the limits that a sandbox that lasts would have. The error says why there can be none.
func (s *Service) LastingLimits(ctx context.Context, l Lasting) (dockerexec.Limits, error) {
	p, err := s.resolver.lastingPlatform(ctx, l.shape())
	return p.Limits, err
}

// BindLasting gives the user of a sandbox that lasts one of the pool's homes, with the container that has it; PlanLasting and
// whoever starts its Spec find these. The user must not have a folder yet. Nothing depends on the result.
func (s *Service) BindLasting(ctx context.Context, id string, l Lasting) {
	c, err := s.call(id, lastingConfinement)
	if err != nil {
		return
	}
	if egress, err := s.lastingEgress(c, l); err == nil {
		s.pool.bindLasting(ctx, c, l.shape(), egress, s.token)
	}
}

func (l lastingShape) limits(most dockerexec.Limits) (dockerexec.Limits, error) {
	nanoCPUs := int64(l.CPUs * 1e9)
	switch {
	case l.CPUs < 0 || l.Memory < 0:
		return most, errs.Invalid("cpus %v and memory %d must not be negative", l.CPUs, l.Memory)
	case most.NanoCPUs > 0 && nanoCPUs > most.NanoCPUs:
		return most, errs.Invalid("%v CPUs are more than a container may have, which is %v (limits.cpus, or what the host has)", l.CPUs, float64(most.NanoCPUs)/1e9)
	case most.Memory > 0 && l.Memory > most.Memory:
		return most, errs.Invalid("%d bytes of memory are more than a container may have, which is %d (limits.memory)", l.Memory, most.Memory)
	}
	if nanoCPUs > 0 {
		most.NanoCPUs = nanoCPUs
	}
	if l.Memory > 0 {
		most.Memory = l.Memory
	}
	return most, nil
}

// LastingRefusals begins to gather what a sandbox that lasts tries to reach and cannot, whichever of its commands tries. end
// ends that, and returns it as Result.Refused and MoreRefused have it; whoever calls LastingRefusals has to call it.
func (s *Service) LastingRefusals(id string) (end func() ([]decisions.Summary, int)) {
	if s.cfg().Decisions == nil {
		return (*refusals)(nil).end
	}
	return s.refusals(dockerexec.Spec{Lasting: id}.ContainerName(), nil).end
}

// LastingEgress returns what a sandbox that lasts may reach. As for calls, the operator's rules decide.
func (s *Service) LastingEgress(id string, l Lasting) (dockerexec.Egress, error) {
	c, err := s.call(id, Confinement{})
	if err != nil {
		return dockerexec.Egress{}, err
	}
	return s.lastingEgress(c, l)
}

func (s *Service) lastingEgress(c *call, l Lasting) (dockerexec.Egress, error) {
	if l.NoNetwork {
		return dockerexec.Egress{}, nil
	}
	if _, err := policy.ParseRanges(l.AllowAddresses, l.DenyAddresses); err != nil {
		return dockerexec.Egress{}, err
	}
	reach := dockerexec.Egress{Profile: profileIsolated, Domains: []string{}, Denied: []string{}} // a network on which nothing is reached
	if len(l.Allow) > 0 {
		asked := *c
		asked.Confinement = Confinement{AllowedDomains: l.Allow, Restrictions: process.Restrictions{DeniedDomains: l.Deny}}
		var err error
		if reach, err = asked.egress(true); err != nil {
			return dockerexec.Egress{}, err
		}
	}
	if len(l.AllowAddresses) == 0 {
		return reach, nil
	}
	if c.cfg.CannotFilter != nil {
		return dockerexec.Egress{}, errs.Denied("this host cannot restrict a sandbox to addresses (%v)", c.cfg.CannotFilter)
	}
	reach.Addresses, reach.DeniedAddresses = l.AllowAddresses, l.DenyAddresses
	return reach, nil
}

// CheckCommand refuses a command that no container could start.
func CheckCommand(argv []string, env map[string]string) error {
	return checkCommand(Request{Argv: argv, Env: env})
}

// removedUsers is the folder in usersDir that holds the remains of users until they are removed.
const removedUsers = ".removed"

// RemoveFiles removes all that a user has on the host. The files are removed in the background. The user's
// containers must be gone.
func (s *Service) RemoveFiles(trash *hostfs.Trash, user ids.User) error {
	planner := s.resolver.rootfs
	beside := filepath.Join(planner.UsersDir(), removedUsers)
	if err := os.Mkdir(beside, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("cannot remove the files of user %q: %w", user, errs.WithoutPath(err))
	}
	if err := trash.Discard(planner.UserDir(user.String()), beside); err != nil {
		return fmt.Errorf("cannot remove the files of user %q: %w", user, errs.WithoutPath(err))
	}
	return nil
}

// Join returns variables as a command has them, of which later ones win.
func Join(given ...map[string]string) []string { return environment(nil, given...) }

// TakeCommand counts a command of a sandbox that lasts, until done is called. With there, the command exists
// already, and is counted even beyond the bound.
func (s *Service) TakeCommand(id string, there bool) (done func(), err error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	return s.takeLasting(box.User.String(), quota.Commands, there)
}

// TakeContainer does the same for the container of a sandbox that lasts.
func (s *Service) TakeContainer(id string, there bool) (done func(), err error) {
	return s.takeLasting(id, quota.Containers, there)
}

func (s *Service) takeLasting(user string, r quota.Resource, there bool) (done func(), err error) {
	account := quota.Account{User: user, Token: s.token}
	if there {
		return s.cfg().Quotas.Hold(account, r, 1), nil
	}
	return s.cfg().Quotas.Take(account, r, 1)
}
