package policy

import (
	"errors"
	"strings"

	"github.com/daycare-run/sandbox/fault"
	"github.com/daycare-run/sandbox/pathmap"
)

// The tags of a call ("Exec and Durable Process Permissions"). Two more have a path behind them.
const (
	TagNetwork   = "@network"
	TagEvents    = "@events"
	TagWorkspace = "@workspace"
	tagRead      = "@read:"
	tagWrite     = "@write:"
)

// Grants are what a call asks for. The zero value asks for nothing: no network, and no place to write
// to but /tmp.
type Grants struct {
	Network, Events, Workspace bool
	Write, Read                []pathmap.ContainerPath
}

// ParseTags reads a call's tags. place reads a tag's path, which is absolute: a path inside, or one of
// the host that a mount shows. All faults come in one error, of class ErrInvalidArgument, each with
// its tag.
func ParseTags(tags []string, place func(string) (pathmap.ContainerPath, error)) (Grants, error) {
	var g Grants
	var faults []error
	for _, tag := range tags {
		switch {
		case tag == TagNetwork:
			g.Network = true
		case tag == TagEvents:
			g.Events = true
		case tag == TagWorkspace:
			g.Workspace = true
		case strings.HasPrefix(tag, tagRead):
			path, err := place(tag[len(tagRead):])
			g.Read, faults = append(g.Read, path), appendTag(faults, tag, err)
		case strings.HasPrefix(tag, tagWrite):
			path, err := place(tag[len(tagWrite):])
			g.Write, faults = append(g.Write, path), appendTag(faults, tag, err)
		default:
			faults = append(faults, fault.Invalid("permissions: unknown tag %.200q; the tags are @network, @events, @workspace, @read:/absolute/path and @write:/absolute/path", tag))
		}
	}
	if len(faults) > 0 {
		return Grants{}, errors.Join(faults...)
	}
	return g, nil
}

func appendTag(faults []error, tag string, err error) []error {
	if err == nil {
		return faults
	}
	return append(faults, fault.Invalid("permissions: tag %.200q: %v", tag, err))
}

// check refuses what the sandbox does not hold.
func (s Subject) check(g Grants) error {
	if g.Network && !s.Network {
		return s.notHeld(TagNetwork, "")
	}
	if g.Events && !s.Events {
		return s.notHeld(TagEvents, "")
	}
	if g.Workspace && !s.holdsWorkspace() {
		return s.notHeld(TagWorkspace, "an app writes to "+s.appData().String()+" alone")
	}
	if len(g.Write)+len(g.Read) == 0 {
		return nil
	}
	held := s.Held()
	for _, path := range g.Write {
		if at, ok := held.At(path); !ok || at.Mode != Writable {
			return s.notHeld(tagWrite+path.String(), whyNot(at))
		}
	}
	for _, path := range g.Read {
		if at, ok := held.At(path); !ok || at.Mode < ReadOnly {
			return s.notHeld(tagRead+path.String(), whyNot(at))
		}
	}
	return nil
}

// whyNot is the reason when there is a particular one.
func whyNot(at Region) string {
	if at.Path == Home {
		return ""
	}
	return at.Why
}

func (s Subject) notHeld(tag, why string) error {
	if why != "" {
		why = " (" + why + ")"
	}
	return fault.Denied("permissions: %s is not granted to this sandbox%s; it holds %s", tag, why, s.holds())
}
