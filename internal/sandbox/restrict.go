package sandbox

import (
	"path"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// restrict takes away from a view what a call gives up.
func (s *Service) restrict(box Sandbox, paths pathmap.Map, v policy.View, less Restrictions) (policy.View, error) {
	if len(less.DenyRead)+len(less.DenyWrite) == 0 {
		return v, nil
	}
	named, err := policy.ParseRestrictions(less.DenyRead, less.DenyWrite, paths)
	if err != nil {
		return policy.View{}, err
	}
	subject := s.subject(box)
	if v, err = subject.Restrict(v, named); err != nil {
		return policy.View{}, err
	}
	mounts, err := s.mounts(box)
	if err != nil {
		return policy.View{}, err
	}
	v, err = subject.Restrict(v, policy.Restrictions{DenyRead: s.otherNames(mounts, named.DenyRead), DenyWrite: s.otherNames(mounts, named.DenyWrite)})
	if err != nil {
		return policy.View{}, errs.Invalid("a path is denied that the mounts show at another place, too; there: %v", err)
	}
	return v, nil
}

// otherNames are the further places at which mounts show what is at paths.
func (s *Service) otherNames(mounts []pathmap.Mount, paths []pathmap.ContainerPath) []pathmap.ContainerPath {
	var others []pathmap.ContainerPath
	for _, p := range paths {
		for _, m := range mounts {
			if pathmap.Within(m.Container.String(), p.String()) {
				others = append(others, s.shownAt(mounts, s.real(m.Host))...)
			} else if rest, ok := pathmap.CutDir(p.String(), m.Container.String()); ok {
				others = append(others, s.shownAt(mounts, path.Join(s.real(m.Host), rest))...)
			}
		}
	}
	return others
}

// shownAt are the places of a path of the host, and those of what is in it.
func (s *Service) shownAt(mounts []pathmap.Mount, host string) []pathmap.ContainerPath {
	var all []pathmap.ContainerPath
	for _, m := range mounts {
		if rest, ok := pathmap.CutDir(host, s.real(m.Host)); ok {
			if inside, err := m.Container.Resolve("./" + rest); err == nil {
				all = append(all, inside)
			}
		} else if pathmap.Within(s.real(m.Host), host) {
			all = append(all, m.Container)
		}
	}
	return all
}
