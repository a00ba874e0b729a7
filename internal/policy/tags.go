package policy

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/pathmap"
)

// The tags of a call ("Exec and Durable Process Permissions"). A path follows TagRead and TagWrite,
// the name of a process or AllProcesses TagProcess, and the name of a credential TagSecret.
const (
	TagNetwork   = "@network"
	TagEvents    = "@events"
	TagWorkspace = "@workspace"
	TagRead      = "@read:"
	TagWrite     = "@write:"
	TagProcess   = "@process:"
	TagSecret    = "@secret:"
)

// AllProcesses stands for all processes that the sandbox itself has started.
const AllProcesses = "*"

// maxProcessName is how many characters a process's name has at most; a longer one names none.
const maxProcessName = 80

// maxSecretName is how many characters a credential's name has at most.
const maxSecretName = 64

// maxPlaces is how many tags a call may have, and how many directories each list of a sandbox's
// permissions: each may become a mount, which is compared with all others and verified with a
// descriptor of its own.
const maxPlaces = 256

// SplitTag returns which tag it is, and its path or name as written. kind is empty if it is not a
// tag.
func SplitTag(tag string) (kind, path string) {
	switch tag {
	case TagNetwork, TagEvents, TagWorkspace:
		return tag, ""
	}
	for _, kind := range []string{TagRead, TagWrite, TagProcess, TagSecret} {
		if path, ok := strings.CutPrefix(tag, kind); ok {
			return kind, path
		}
	}
	return "", ""
}

// Grants are what a call asks for. The zero value asks for nothing: no network, and no writable
// place but /tmp.
type Grants struct {
	Network, Events, Workspace bool
	Write, Read                []pathmap.ContainerPath
	// Processes are names of processes whose ports it may reach.
	Processes []string
	// Secrets are names of credentials that are put into what it sends.
	Secrets []string
}

// ParseTags returns the grants that a call's tags ask for. A tag's path is absolute: a container
// path, or a host path that paths shows. All faults come in one error, of class ErrInvalidArgument,
// each with its tag.
func ParseTags(tags []string, paths pathmap.Map) (Grants, error) {
	var g Grants
	if len(tags) > maxPlaces {
		return g, errs.Invalid(
			"permissions has %d tags; at most %d are allowed: grant a directory that holds what they name",
			len(tags), maxPlaces)
	}
	var faults []error
	for _, tag := range tags {
		kind, written := SplitTag(tag)
		switch kind {
		case TagNetwork:
			g.Network = true
		case TagEvents:
			g.Events = true
		case TagWorkspace:
			g.Workspace = true
		case TagRead:
			path, err := paths.Parse(written)
			g.Read, faults = append(g.Read, path), appendTag(faults, tag, err)
		case TagWrite:
			path, err := paths.Parse(written)
			g.Write, faults = append(g.Write, path), appendTag(faults, tag, err)
		case TagProcess:
			g.Processes, faults = append(g.Processes, written),
				appendTag(faults, tag, CheckProcessName(written))
		case TagSecret:
			g.Secrets, faults = append(g.Secrets, written),
				appendTag(faults, tag, CheckSecretName(written))
		default:
			faults = append(faults,
				errs.Invalid(
					"permissions: unknown tag %.200q; the tags are @network, @events, @workspace, @read:/absolute/path, @write:/absolute/path, @process:NAME and @secret:NAME",
					tag))
		}
	}
	if len(faults) > 0 {
		return Grants{}, errors.Join(faults...)
	}
	return g, nil
}

// CheckProcessName returns what is wrong with a name of a process, or AllProcesses, as a grant.
func CheckProcessName(name string) error {
	switch {
	case name == "":
		return errs.Invalid("the name of a process is missing")
	case utf8.RuneCountInString(name) > maxProcessName:
		return errs.Invalid("no process has a name of more than %d characters", maxProcessName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return errs.Invalid("the name of a process is text without NUL")
	}
	return nil
}

// CheckSecretName returns what is wrong with the name of a credential.
func CheckSecretName(name string) error {
	switch {
	case name == "":
		return errs.Invalid("the name of a credential is missing")
	case len(name) > maxSecretName || strings.Trim(name, "-") != name ||
		strings.ContainsFunc(name, func(r rune) bool {
			return r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
		}):
		return errs.Invalid(
			"%.80q is no name of a credential: it has 1 to %d lower-case letters, digits and hyphens, and begins and ends with no hyphen",
			name, maxSecretName)
	}
	return nil
}

func appendTag(faults []error, tag string, err error) []error {
	if err == nil {
		return faults
	}
	return append(faults, errs.Invalid("permissions: tag %.200q: %v", tag, err))
}

// check refuses what the sandbox does not hold. v is the view that results from the grants: a path
// in a directory that is held may still be hidden, an app's, or on a read-only mount.
func (s Subject) check(g Grants, v View) error {
	if g.Network && !s.Network {
		return s.notHeld(TagNetwork, "")
	}
	if g.Events && !s.Events {
		return s.notHeld(TagEvents, "")
	}
	for _, name := range g.Processes {
		if !s.holdsProcess(name) && !s.holdsProcess(AllProcesses) {
			return s.notHeld(TagProcess+name, "")
		}
	}
	for _, name := range g.Secrets {
		if !slices.Contains(s.Secrets, name) {
			return s.notHeld(TagSecret+name, "")
		}
	}
	held := s.everything()
	if g.Workspace && !(s.writes(held, s.WorkingDir) && v.allows(s.WorkingDir, Writable)) {
		return s.notHeld(TagWorkspace, s.whyNoWorkspace())
	}
	for _, path := range g.Write {
		if !(s.writes(held, path) && v.allows(path, Writable)) {
			return s.notHeld(TagWrite+path.String(), s.whyNot(path))
		}
	}
	for _, path := range g.Read {
		if !(s.reads(held, path) && v.allows(path, ReadOnly)) {
			return s.notHeld(TagRead+path.String(), s.whyNot(path))
		}
	}
	return nil
}

// writes and reads report whether a path lies in a place that is held. What every call has counts
// as held.
func (s Subject) writes(held Grants, path pathmap.ContainerPath) bool {
	return path.Within(Tmp) || (held.Workspace && path.Within(s.WorkingDir)) ||
		slices.ContainsFunc(held.Write, path.Within) ||
		(!s.AppID.IsZero() && path.Within(s.appData()))
}

func (s Subject) reads(held Grants, path pathmap.ContainerPath) bool {
	return path.Within(Home) || (s.HasSkills && path.Within(Skills)) ||
		slices.ContainsFunc(held.Read, path.Within) || s.writes(held, path)
}

func (s Subject) whyNoWorkspace() string {
	if !s.AppID.IsZero() {
		return "an app writes to " + s.appData().String() + " alone"
	}
	return s.whyNot(s.WorkingDir)
}

// whyNot returns the reason, if there is a particular one.
func (s Subject) whyNot(path pathmap.ContainerPath) string {
	at, _ := s.Held().At(path)
	if at.Path == Home {
		return ""
	}
	return at.Why
}

func (s Subject) notHeld(tag, why string) error {
	if why != "" {
		why = " (" + why + ")"
	}
	return errs.Denied("permissions: %s is not granted to this sandbox%s; it holds %s", tag, why,
		s.holds())
}
