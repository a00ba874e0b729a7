package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// maxMounts is how many further mounts a sandbox may have: each is a mount in every container that
// was granted it.
const maxMounts = 64

// taken are the places inside that belong to the container; a further mount is neither in them nor
// around them.
var taken = []string{
	"/.daycare", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc",
	"/root", "/run", "/sbin", "/shared/skills", "/sys", "/tmp", "/usr", "/var",
}

// parseMounts reads the further mounts and the skills.
func (s *Service) parseMounts(box *Sandbox, r Registration) error {
	if len(r.Mounts) > maxMounts {
		return errs.Invalid("mounts: there are %d, more than %d", len(r.Mounts), maxMounts)
	}
	for i, m := range r.Mounts {
		field := fmt.Sprintf("mounts[%d]", i)
		source, err := s.mountSource(field+".source", m.Source)
		if err != nil {
			return err
		}
		target, err := pathmap.ParseContainer(m.Target)
		if err != nil {
			return errs.Invalid("%s.target: %v", field, err)
		}
		for _, name := range taken {
			if own, err := pathmap.ParseContainer(name); err == nil && (target.Within(own) || own.Within(target)) {
				return errs.Invalid("%s.target: %q is not free: %s is the container's; take a place such as /mnt/data", field, target, name)
			}
		}
		for _, other := range box.Mounts {
			if target.Within(other.Target) || other.Target.Within(target) {
				return errs.Invalid("%s.target: %q and %q lie in one another", field, target, other.Target)
			}
		}
		box.Mounts = append(box.Mounts, Mount{Source: source, Target: target, ReadOnly: m.ReadOnly})
	}
	if r.SkillsDir != "" {
		source, err := s.mountSource("skillsDir", r.SkillsDir)
		if err != nil {
			return err
		}
		box.SkillsDir = source.String()
	}
	return nil
}

// mountSource reads a path of the host that a caller wants to have mounted: in one of the roots, and
// nothing by which a home would be seen at a place where its secrets are not hidden.
func (s *Service) mountSource(field, written string) (pathmap.HostPath, error) {
	source, err := pathmap.ParseHost(written)
	if err != nil {
		return source, errs.Invalid("%s: %v", field, err)
	}
	allowed := false
	for _, root := range s.cfg().AllowedMountRoots {
		allowed = allowed || pathmap.Within(written, root)
	}
	if !allowed {
		return source, errs.Denied("%s: %q is in none of allowedMountRoots; the operator may add it, or a directory above it, to that setting", field, written)
	}
	if why := s.keptFrom(source); why != "" {
		return source, errs.Denied("%s: %s", field, why)
	}
	return source, nil
}

// keptFrom says why a path of the host is never mounted; empty where it may be. This is the one list of what is the
// service's own, or is to be seen as a home alone.
func (s *Service) keptFrom(source pathmap.HostPath) string {
	users, err := pathmap.ParseHost(s.cfg().UsersDir)
	if err != nil {
		return "it cannot be compared with usersDir"
	}
	// By where they really are, lest a link of the operator's makes another name for a home.
	at, usersAt := s.real(source), s.real(users)
	if pathmap.Within(usersAt, at) {
		return "it holds the homes of users, whose secrets would be seen"
	}
	rest, inUsers := strings.CutPrefix(at, usersAt+"/")
	if !inUsers { // usersDir may lie in dataDir
		for _, own := range s.cfg().own {
			if pathmap.Within(at, own) || pathmap.Within(own, at) {
				return "it holds, or is in, what is the service's own"
			}
		}
		return ""
	}
	user, inUser, _ := strings.Cut(rest, "/")
	first, _, _ := strings.Cut(inUser, "/")
	inHome, below := strings.CutPrefix(inUser, "home/")
	switch {
	case strings.HasPrefix(user, ".") || strings.HasPrefix(first, ".") || first == processesDir:
		return "it is in what is the service's own"
	case inUser == "" || inUser == "home":
		return "it holds a user's home, whose secrets would be seen; mount a directory in it"
	case !below:
		return ""
	}
	for _, name := range append(policy.DeniedInHome(), "apps") {
		if pathmap.Within(inHome, name) || pathmap.Within(name, inHome) {
			return fmt.Sprintf("it holds, or is in, %s of a home, which is hidden from every call", name)
		}
	}
	return ""
}

// mounts says whether a further mount holds a path. To see it takes a grant.
func (box Sandbox) mounts(path pathmap.ContainerPath) bool {
	return slices.ContainsFunc(box.Mounts, func(m Mount) bool { return path.Within(m.Target) })
}
