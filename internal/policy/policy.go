// Package policy decides what a call may see and reach: what a sandbox holds, what a call's tags ask
// for, and the view of the file system that follows. It is pure: no I/O and no logging.
//
// permissions.go has what a sandbox holds, tags.go what a call asks for, deny.go the paths that nobody
// sees, regions.go how all of it comes to regions, restrict.go what a call gives up of them, and view.go what
// is read off them. domain.go and domains.go have names and sets of names, presets.go those of package
// managers, egress.go what a call may reach by them, addresses.go which addresses a profile may reach.
//
// SECURITY.md lists the rules, each with what keeps it and the test that shows it.
package policy

import "github.com/daycare-run/sandbox/pathmap"

// Where every container has them.
var (
	Home   = mustPath("/home")
	Tmp    = mustPath("/tmp")
	Skills = mustPath("/shared/skills")
)

// Subject is everything about a sandbox that decides what its calls may do.
type Subject struct {
	Permissions
	// Mounts are the further mounts that calls may be granted, or parts of them.
	Mounts []Mount
	// HasSkills says that skills are mounted.
	HasSkills bool
	// AppRoots are further directories of apps of this user, those of the user's other sandboxes: an
	// agent sees no app in any of them but its own.
	AppRoots []pathmap.ContainerPath
}

// Mount is a further mount, by its place inside.
type Mount struct {
	Target   pathmap.ContainerPath
	ReadOnly bool
}

// Decision is what a call gets.
type Decision struct {
	View            View
	Network, Events bool
}

// Decide checks a call's grants against what the sandbox holds. A grant that goes beyond is
// errdefs.ErrPermissionDenied; the message names it and what is held.
func (s Subject) Decide(g Grants) (Decision, error) {
	view := s.view(g)
	if err := s.check(g, view); err != nil {
		return Decision{}, err
	}
	return Decision{View: view, Network: g.Network, Events: g.Events}, nil
}

// Held is the view with all that the sandbox holds: what the file calls, which have no tags, go by.
func (s Subject) Held() View { return s.view(s.everything()) }

// everything is what the sandbox holds, as grants. An app's data needs none.
func (s Subject) everything() Grants {
	return Grants{
		Workspace: s.AppID.IsZero(),
		Write:     s.WriteDirs,
		Read:      s.ReadDirs,
	}
}

func mustPath(name string) pathmap.ContainerPath {
	path, err := pathmap.ParseContainer(name)
	if err != nil {
		panic(err)
	}
	return path
}
