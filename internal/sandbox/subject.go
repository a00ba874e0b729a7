package sandbox

import (
	"path/filepath"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// permissions are the sandbox's, as policy takes them.
func (box Sandbox) permissions() policy.Permissions {
	app, _ := policy.ParseAppID(box.AppID) // it was parsed when it was registered
	return policy.Permissions{
		WorkingDir: box.WorkingDir, WriteDirs: box.WriteDirs, ReadDirs: box.ReadDirs,
		Network: box.Network, Events: box.Events, AppID: app,
	}
}

// subject is what policy decides about a sandbox by.
func (s *Service) subject(box Sandbox) policy.Subject {
	subject := policy.Subject{
		Permissions: box.permissions(),
		HasSkills:   box.SkillsDir != "",
		AppRoots:    s.registry.AppRoots(box.User),
	}
	for _, m := range box.Mounts {
		subject.Mounts = append(subject.Mounts, policy.Mount{Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return subject
}

// paths maps between the host and what a sandbox's containers show, but for /tmp, which has no fixed
// place on the host.
func (s *Service) paths(box Sandbox) (pathmap.Map, error) {
	mounts, err := s.mounts(box)
	if err != nil {
		return pathmap.Map{}, err
	}
	return pathmap.New(mounts...)
}

// mounts are what paths maps over.
func (s *Service) mounts(box Sandbox) ([]pathmap.Mount, error) {
	home, err := s.homePath(box.User)
	if err != nil {
		return nil, err
	}
	mounts := []pathmap.Mount{{Host: home, Container: policy.Home}}
	if box.SkillsDir != "" {
		skills, err := pathmap.ParseHost(box.SkillsDir)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, pathmap.Mount{Host: skills, Container: policy.Skills})
	}
	for _, m := range box.Mounts {
		mounts = append(mounts, pathmap.Mount{Host: m.Source, Container: m.Target})
	}
	return mounts, nil
}

func (s *Service) homePath(user UserID) (pathmap.HostPath, error) {
	return pathmap.ParseHost(filepath.Join(s.cfg().UsersDir, user.id, "home"))
}

// resolve reads a path that a caller wrote: as Parse does, or relative to base, or below the home
// when it begins with ~/.
func resolve(paths pathmap.Map, base pathmap.ContainerPath, written string) (pathmap.ContainerPath, error) {
	if written == "~" || strings.HasPrefix(written, "~/") {
		return policy.Home.Resolve("." + written[1:])
	}
	if inside, err := paths.Parse(written); err == nil {
		return inside, nil
	}
	path, err := base.Resolve(written)
	if err != nil {
		return pathmap.ContainerPath{}, err
	}
	return path, nil
}

// parseRegistration reads what an engine says of a sandbox. Nothing is looked at on the host.
func (s *Service) parseRegistration(id string, r Registration) (Sandbox, error) {
	user, err := ParseUserID(r.UserID)
	if err != nil {
		return Sandbox{}, err
	}
	box := Sandbox{User: user, Network: r.Network, Events: r.Events, AppID: r.AppID}
	if box.ID, err = ParseID(id); err != nil {
		return Sandbox{}, err
	}
	if _, err := policy.ParseAppID(r.AppID); err != nil {
		return Sandbox{}, errs.Invalid("permissions.appId: %v", err)
	}
	if err := s.parseMounts(&box, r); err != nil {
		return Sandbox{}, err
	}
	paths, err := s.paths(box)
	if err != nil {
		return Sandbox{}, errs.Invalid("mounts: %v", err)
	}
	box.WorkingDir = policy.Home
	if r.WorkingDir != "" {
		if box.WorkingDir, err = resolve(paths, policy.Home, r.WorkingDir); err != nil {
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
			dir, err := paths.Parse(written)
			if err != nil {
				return Sandbox{}, errs.Invalid("permissions.%s[%d]: %v", list.name, i, err)
			}
			*list.to = append(*list.to, dir)
		}
	}
	return box, s.subject(box).Check()
}
