package policy

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/pathmap"
)

// Permissions are what a sandbox holds; a call is granted a part of them.
type Permissions struct {
	// WorkingDir is where commands start and what @workspace makes writable.
	WorkingDir pathmap.ContainerPath
	// WriteDirs and ReadDirs are the directories that @write: and @read: may name, with everything
	// below.
	WriteDirs, ReadDirs []pathmap.ContainerPath
	Network, Events     bool
	// Processes are the names that TagProcess may have.
	Processes []string
	// Secrets are the names that TagSecret may have.
	Secrets []string
	// AppID is the app that the sandbox belongs to; zero for none.
	AppID AppID
}

// AppID names an app: a directory below Workspace/apps. ParseAppID makes it; the zero value is
// none.
type AppID struct{ name string }

func (a AppID) String() string { return a.name }

// IsZero reports whether there is no app.
func (a AppID) IsZero() bool { return a.name == "" }

// appPattern is compiled on first use: that takes longer than everything else that a command-line
// program initializes.
var appPattern = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
})

// ParseAppID accepts 1 to 128 letters, digits, dots, dashes and underscores that begin with a
// letter or digit. An empty string means no app.
func ParseAppID(s string) (AppID, error) {
	if s != "" && !appPattern().MatchString(s) {
		return AppID{},
			errs.Invalid(
				"%.140q may only have letters, digits, and . _ - after the first character, at most 128",
				s)
	}
	return AppID{s}, nil
}

// appsName is the directory of apps in a workspace ("App directory isolation").
const appsName = "apps"

// Workspace returns the directory whose apps directory counts for this sandbox: the working
// directory or, if that lies in the app's own directory, the workspace that holds the app.
func (p Permissions) Workspace() pathmap.ContainerPath {
	if p.AppID.IsZero() {
		return p.WorkingDir
	}
	own := "/" + appsName + "/" + p.AppID.name
	name := p.WorkingDir.String()
	if i := strings.Index(name+"/", own+"/"); i > 0 {
		return mustPath(name[:i])
	}
	return p.WorkingDir
}

// AppRoot returns the directory that holds the apps of this sandbox's workspace.
func (p Permissions) AppRoot() pathmap.ContainerPath { return child(p.Workspace(), appsName) }

// appDir is the app's own directory, and appData what it may write to.
func (p Permissions) appDir() pathmap.ContainerPath  { return child(p.AppRoot(), p.AppID.name) }
func (p Permissions) appData() pathmap.ContainerPath { return child(p.appDir(), "data") }

// appRoots returns all app directories that this sandbox must not see into.
func (s Subject) appRoots() []pathmap.ContainerPath {
	return append([]pathmap.ContainerPath{child(Home, appsName), s.AppRoot()}, s.AppRoots...)
}

// holdsWorkspace reports whether @workspace may be granted. An app agent writes only to its data,
// unless its writeDirs say more.
func (s Subject) holdsWorkspace() bool {
	return s.Held().allows(s.WorkingDir, Writable)
}

func (s Subject) holdsProcess(name string) bool { return slices.Contains(s.Processes, name) }

// processes returns whose ports a call may reach that asks for those names, sorted.
func (s Subject) processes(asked []string) (of []Process) {
	for _, name := range asked {
		of = append(of, Process{Name: name, Own: name == AllProcesses || !s.holdsProcess(name)})
	}
	slices.SortFunc(of, func(a, b Process) int { return strings.Compare(a.Name, b.Name) })
	return slices.Compact(of)
}

// Check returns an error if a sandbox cannot hold its working directory or a grantable path,
// because no view could show it so. All faults come in one error, of class ErrInvalidArgument or
// ErrPermissionDenied.
func (s Subject) Check() error {
	if err := errors.Join(few("permissions.writeDirs", len(s.WriteDirs), directories),
		few("permissions.readDirs", len(s.ReadDirs), directories),
		few("permissions.processes", len(s.Processes), names),
		few("permissions.secrets", len(s.Secrets), names)); err != nil {
		return err
	}
	held := s.Held()
	faults := []error{}
	for i, name := range s.Processes {
		if err := CheckProcessName(name); err != nil {
			faults = append(faults, errs.Invalid("permissions.processes[%d]: %v", i, err))
		}
	}
	for i, name := range s.Secrets {
		if err := CheckSecretName(name); err != nil {
			faults = append(faults, errs.Invalid("permissions.secrets[%d]: %v", i, err))
		}
	}
	if at, ok := held.At(s.WorkingDir); !ok || !s.WorkingDir.Within(Home) || at.Mode < ReadOnly {
		faults = append(faults, s.outside("permissions.workingDir", s.WorkingDir, at, ok))
	}
	for _, dir := range s.WriteDirs {
		if at, ok := held.At(dir); !ok || at.Mode != Writable {
			faults = append(faults, s.outside("permissions.writeDirs", dir, at, ok))
		}
	}
	for _, dir := range s.ReadDirs {
		if at, ok := held.At(dir); !ok || at.Mode < ReadOnly {
			faults = append(faults, s.outside("permissions.readDirs", dir, at, ok))
		}
	}
	return errors.Join(faults...)
}

// What few says of a list that is too long.
const (
	directories = "directories; at most %d are allowed: name one that holds them"
	names       = "names; at most %d are allowed"
)

func few(field string, n int, of string) error {
	if n > maxPlaces {
		return errs.Invalid("%s has %d "+of, field, n, maxPlaces)
	}
	return nil
}

func (s Subject) outside(field string, path pathmap.ContainerPath, at Region, shown bool) error {
	switch {
	case shown && at.Mode != Writable && at.Path != Home:
		return errs.Denied("%s: %q cannot be granted: %s", field, path, at.Why)
	case field == "permissions.workingDir":
		return errs.Denied("%s %q is outside of %s", field, path, Home)
	case s.inMount(path):
		return errs.Denied("%s: %q is in a mount that is read-only", field, path)
	default:
		return errs.Denied("%s: %q is in no mount", field, path)
	}
}

func (s Subject) inMount(path pathmap.ContainerPath) bool {
	_, ok := s.mountOf(path)
	return ok
}

// holds returns the permissions as tags, for a person.
func (s Subject) holds() string {
	var tags []string
	if s.Network {
		tags = append(tags, TagNetwork)
	}
	if s.Events {
		tags = append(tags, TagEvents)
	}
	if s.holdsWorkspace() {
		tags = append(tags, TagWorkspace)
	}
	for _, dir := range s.WriteDirs {
		tags = append(tags, TagWrite+dir.String())
	}
	for _, dir := range s.ReadDirs {
		tags = append(tags, TagRead+dir.String())
	}
	for _, name := range s.Processes {
		tags = append(tags, TagProcess+name)
	}
	for _, name := range s.Secrets {
		tags = append(tags, TagSecret+name)
	}
	if len(tags) == 0 {
		return "no permissions"
	}
	return strings.Join(tags, ", ")
}

// child returns the path of name below dir; the name is a constant or parsed.
func child(dir pathmap.ContainerPath, name string) pathmap.ContainerPath {
	path, err := dir.Resolve(name)
	if err != nil {
		return dir // too long for any file: nothing can be there
	}
	return path
}
