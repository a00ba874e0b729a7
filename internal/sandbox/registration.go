package sandbox

import (
	"fmt"
	"slices"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/internal/rootfs"
	"github.com/daycare-run/sandbox/pathmap"
)

// parseRegistration parses what a caller says about a sandbox. It looks at nothing on the host.
func (s *Service) parseRegistration(id string, r Registration) (Sandbox, error) {
	user, err := ids.ParseUser(r.UserID)
	if err != nil {
		return Sandbox{}, err
	}
	box := Sandbox{User: user, Network: r.Network, Events: r.Events, Processes: r.Processes,
		Secrets: r.Secrets, AppID: r.AppID,
		Persistent: r.Persistent, Domains: r.AllowedDomains, Presets: r.PackageManagers}
	if box.ID, err = ids.ParseSandbox(id); err != nil {
		return Sandbox{}, err
	}
	if _, err := policy.ParseAppID(r.AppID); err != nil {
		return Sandbox{}, errs.Invalid("permissions.appId: %v", err)
	}
	if err := s.parseMounts(&box, r); err != nil {
		return Sandbox{}, err
	}
	box.WorkingDir = policy.Home
	c, err := s.planner.Resolve(box, Confinement{})
	if err != nil {
		return Sandbox{}, errs.Invalid("mounts: %v", err)
	}
	if err := checkTargets(c); err != nil {
		return Sandbox{}, err
	}
	if r.WorkingDir != "" {
		if box.WorkingDir, err = c.Path(r.WorkingDir); err != nil {
			return Sandbox{}, errs.Invalid("permissions.workingDir: %v", err)
		}
	}
	for _, list := range []struct {
		name string
		from []string
		to   *[]pathmap.ContainerPath
	}{
		{"writeDirs", r.WriteDirs, &box.WriteDirs},
		{"readDirs", r.ReadDirs, &box.ReadDirs},
	} {
		for i, written := range list.from {
			dir, err := c.Paths.Parse(written)
			if err != nil {
				return Sandbox{}, errs.Invalid("permissions.%s[%d]: %v", list.name, i, err)
			}
			*list.to = append(*list.to, dir)
		}
	}
	if n := size(box); n > maxRegistered {
		return Sandbox{},
			errs.Invalid(
				"the paths of permissions and mounts, and the names, have %d bytes together, more than %d: name fewer directories that hold the others",
				n, maxRegistered)
	}
	if err := s.checkNames(box); err != nil {
		return Sandbox{}, err
	}
	subject := c.Subject
	subject.Permissions = box.PolicyPermissions()
	return box, subject.Check()
}

// checkNames refuses names that the persistent container of a sandbox could not reach.
func (s *Service) checkNames(box Sandbox) error {
	field := "allowedDomains"
	switch {
	case len(box.Domains) > 0:
	case len(box.Presets) > 0:
		field = "packageManagers"
	default:
		return nil
	}
	switch {
	case !box.Persistent:
		return errs.Invalid(
			"%s: a sandbox has names of its own only if it is persistent; otherwise each call names what it reaches: set persistent, or leave it out",
			field)
	case !box.Network:
		return errs.Invalid("%s: the sandbox has no network: set permissions.network, or leave it out",
			field)
	}
	_, err := s.planner.PersistentEgress(box,
		plan.Persistent{Allow: box.Domains, PackageManagers: box.Presets})
	return err
}

// maxRegistered bounds the paths and names of a sandbox, in bytes: each is kept in memory, and there may be
// many.
const maxRegistered = 64 << 10

func size(box Sandbox) int {
	n := len(box.WorkingDir.String()) + len(box.SkillsDir)
	for _, dir := range slices.Concat(box.WriteDirs, box.ReadDirs) {
		n += len(dir.String())
	}
	for _, name := range slices.Concat(box.Domains, box.Presets, box.Processes, box.Secrets) {
		n += len(name)
	}
	for _, m := range box.Mounts {
		n += len(m.Source.String()) + len(m.Target.String())
	}
	return n
}

// maxFurtherMounts is how many further mounts a sandbox may have: each is a mount in every
// container that was granted it.
const maxFurtherMounts = 64

// parseMounts parses the further mounts and the skills.
func (s *Service) parseMounts(box *Sandbox, asked Registration) error {
	if len(asked.Mounts) > maxFurtherMounts {
		return errs.Invalid("mounts: there are %d, more than %d", len(asked.Mounts),
			maxFurtherMounts)
	}
	for i, m := range asked.Mounts {
		field := fmt.Sprintf("mounts[%d]", i)
		source, err := s.planner.Source(field+".source", m.Source)
		if err != nil {
			return err
		}
		target, err := pathmap.ParseContainer(m.Target)
		if err != nil {
			return errs.Invalid("%s.target: %v", field, err)
		}
		if err := rootfs.CheckTarget(field+".target", target); err != nil {
			return err
		}
		for _, other := range box.Mounts {
			if target.Within(other.Target) || other.Target.Within(target) {
				return errs.Invalid("%s.target: of %q and %q, one lies in the other", field, target,
					other.Target)
			}
		}
		box.Mounts = append(box.Mounts,
			registry.Mount{Source: source, Target: target, ReadOnly: m.ReadOnly})
	}
	if asked.SkillsDir == "" {
		return nil
	}
	skills, err := s.planner.Source("skillsDir", asked.SkillsDir)
	box.SkillsDir = skills.String()
	return err
}

// checkTargets refuses a further mount whose target is also the name of something on the host that
// a mount shows. Callers write paths of either kind, so a path there would mean two files. There is
// one meaning where a mount has the same path on both sides. The places of the home and of the
// skills are fixed: there, the path on the host counts. So it does where a target is above the
// home's path on the host, as /data is: nobody means a file of a mount by that path.
func checkTargets(c *plan.Call) error {
	for i, m := range c.Mounts {
		target := m.Target.String()
		if m.Source.String() == target {
			continue
		}
		for _, other := range c.Shown {
			host := other.Host.String()
			if pathmap.Within(target, host) ||
				pathmap.Within(host, target) && other.Container != policy.Home {
				return errs.Invalid(
					"mounts[%d].target: %q is, holds or lies in the host path of what is mounted at %q, so a path there would mean two files: take another target, or the source's own path",
					i, target, other.Container)
			}
		}
	}
	return nil
}
