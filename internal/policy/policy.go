// Package policy decides what a call may see and reach: what a sandbox holds, what a call's tags
// ask for, and the view of the file system that follows. It is pure: no I/O and no logging.
//
// permissions.go has what a sandbox holds, tags.go what a call asks for, and deny.go the paths that
// nobody sees. regions.go turns these into regions, restrict.go takes away what a call gives up,
// and view.go answers questions about the result. domain.go and domains.go have names and sets of
// names, presets.go the names of package managers, egress.go what a call may reach, addresses.go
// which addresses a profile may reach, and ranges.go those allowed whatever the name.
//
// docs/security/files.md lists the rules, each with the code that keeps it and the test that shows
// it.
package policy

import (
	"slices"

	"github.com/daycare-run/sandbox/pathmap"
)

// Container paths that are the same everywhere.
var (
	Home   = mustPath("/home")
	Tmp    = mustPath("/tmp")
	Skills = mustPath("/shared/skills")
)

// Subject is everything about a sandbox that decides what its calls may do.
type Subject struct {
	Permissions
	// Mounts are the further mounts that calls may be granted, in whole or in part.
	Mounts []Mount
	// HasSkills says that skills are mounted.
	HasSkills bool
	// AppRoots are the app directories of this user's other sandboxes: an agent sees no app in any
	// of them but its own.
	AppRoots []pathmap.ContainerPath
}

// Mount is a further mount, by its container path.
type Mount struct {
	Target   pathmap.ContainerPath
	ReadOnly bool
}

// Decision is what a call gets.
type Decision struct {
	View            View
	Network, Events bool
	// Processes are those whose ports it reaches, sorted by name.
	Processes []Process
	// Secrets are the names of its credentials, sorted.
	Secrets []string
	// Symlinks lead to what the call gives up.
	Symlinks []Symlink
}

// Process names processes of the sandbox's user: that of a name, or all for AllProcesses.
type Process struct {
	Name string
	// Own leaves only those that the sandbox itself has started.
	Own bool
}

// Symlink is a symbolic link, and its text.
type Symlink struct {
	Path pathmap.ContainerPath
	Text string
}

// Decide checks a call's grants against what the sandbox holds. If a grant goes beyond that, the
// error is of class ErrPermissionDenied, and names the grant and what is held.
func (s Subject) Decide(g Grants) (Decision, error) {
	view := s.view(g)
	if err := s.check(g, view); err != nil {
		return Decision{}, err
	}
	return Decision{View: view, Network: g.Network, Events: g.Events,
		Processes: s.processes(g.Processes),
		Secrets:   slices.Compact(slices.Sorted(slices.Values(g.Secrets)))}, nil
}

// Held returns the view with all that the sandbox holds. The file calls, which have no tags, go by
// it.
func (s Subject) Held() View { return s.view(s.everything()) }

// DecideAll returns what a call would get that is granted all that the sandbox holds, but for
// processes and credentials, which are for calls with a container of their own.
func (s Subject) DecideAll() Decision {
	return Decision{View: s.Held(), Network: s.Network, Events: s.Events}
}

// everything returns what the sandbox holds, as grants. An app's data needs no grant.
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
