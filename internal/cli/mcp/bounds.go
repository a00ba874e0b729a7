package mcp

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// Bounds are what calls may ask for. This package refuses what exceeds them; the service refuses
// what the sandbox does not hold.
type Bounds struct {
	// Grants are tags: @workspace, @network, @events, @write:/path, @read:/path, @process:NAME,
	// @secret:NAME.
	Grants []string
	// Held reports whether Grants are what a registered sandbox holds, which no flag of this server
	// extends.
	Held bool
	// Domains and PackageManagers are what calls may ask to reach. If both are empty, a call with
	// @network may name any domain.
	Domains         policy.Domains
	PackageManagers []string
	// Expose reports whether ports of processes may be reached from the host.
	Expose bool
	// WorkingDir is the sandbox's working directory in the container, and Home the path of the
	// user's home on the host.
	WorkingDir, Home string
}

func (b Bounds) has(tag string) bool {
	kind, _ := policy.SplitTag(tag)
	return slices.Contains(b.Grants, tag) ||
		kind == policy.TagProcess && slices.Contains(b.Grants, kind+policy.AllProcesses)
}

// free reports whether calls may name any domain.
func (b Bounds) free() bool { return b.Domains.IsZero() && len(b.PackageManagers) == 0 }

// tags checks the permissions of a call, and returns them in the form for the service. It joins all
// faults into one error.
func (b Bounds) tags(tags []string) ([]string, error) {
	var faults []error
	var all []string
	for _, tag := range tags {
		kind, name := policy.SplitTag(tag)
		if kind != policy.TagWrite && kind != policy.TagRead {
			if all = append(all, tag); !b.has(tag) {
				faults = append(faults, b.notGranted(tag))
			}
			continue
		}
		if !strings.HasPrefix(name, "/") {
			faults = append(faults, fmt.Errorf("permissions: tag %q: its path is not absolute",
				tag))
			continue
		}
		inside := b.inside(name)
		if all = append(all, kind+inside); !b.writes(inside) &&
			(kind == policy.TagWrite || !b.reads(inside)) {
			faults = append(faults, b.notGranted(tag))
		}
	}
	return all, errors.Join(faults...)
}

func (b Bounds) notGranted(tag string) error {
	remedy := "the operator of this server can grant more with --grant"
	if b.Held {
		remedy = "whoever registers the sandbox can have it hold more"
	}
	return fmt.Errorf(
		"permissions: %s is not granted to this sandbox: a call may ask for %s; %s", tag,
		orNone(b.Grants), remedy)
}

// names checks the domains and package managers that a call asks to reach.
func (b Bounds) names(domains, managers []string) error {
	if b.free() {
		return nil
	}
	var faults []error
	for _, manager := range managers {
		if !slices.Contains(b.PackageManagers, manager) {
			faults = append(faults,
				fmt.Errorf("packageManagers: %q is not allowed here: a call may name %s", manager,
					orNone(b.PackageManagers)))
		}
	}
	// The domains of the allowed presets may be named, too.
	allowed := b.Domains
	for _, manager := range b.PackageManagers {
		if preset, err := (policy.Presets{}).Resolve([]string{manager}); err == nil {
			allowed = allowed.Union(preset)
		}
	}
	for _, domain := range domains {
		asked, err := policy.ParseDomains([]string{domain})
		if err != nil {
			faults = append(faults, fmt.Errorf("allowedDomains: %w", err))
		} else if !allowed.Covers(asked) {
			faults = append(faults,
				fmt.Errorf("allowedDomains: %q is not allowed here: a call may name %s; the operator of this server can allow more with --allow-domain",
					domain, orNone(allowed.List())))
		}
	}
	return errors.Join(faults...)
}

// inside returns the container's path for a path that an agent wrote: relative to the working
// directory, from the home as ~/…, absolute, or the host's path of something in the home.
func (b Bounds) inside(name string) string {
	switch {
	case name == "~" || strings.HasPrefix(name, "~/"):
		name = policy.Home.String() + name[1:]
	case !strings.HasPrefix(name, "/"):
		name = b.WorkingDir + "/" + name
	}
	name = path.Clean(name)
	if b.Home != "" && pathmap.Within(name, b.Home) {
		return path.Join(policy.Home.String(), strings.TrimPrefix(name, b.Home))
	}
	return name
}

// writes and reads report whether a file call may write or read a path. The service would go by
// what the sandbox holds, which always includes its working directory.
func (b Bounds) writes(inside string) bool {
	return pathmap.Within(inside, policy.Tmp.String()) ||
		(b.has(policy.TagWorkspace) && pathmap.Within(inside, b.WorkingDir)) ||
		b.inTag(policy.TagWrite, inside)
}

func (b Bounds) reads(inside string) bool {
	return pathmap.Within(inside, policy.Home.String()) ||
		pathmap.Within(inside, policy.Skills.String()) || b.writes(inside) ||
		b.inTag(policy.TagRead, inside)
}

func (b Bounds) inTag(kind, inside string) bool {
	return slices.ContainsFunc(b.Grants, func(tag string) bool {
		dir, ok := strings.CutPrefix(tag, kind)
		return ok && pathmap.Within(inside, b.inside(dir))
	})
}

// ports checks whether ports of a process may be reached from the host.
func (b Bounds) ports(ports []int) error {
	if len(ports) > 0 && !b.Expose {
		return errors.New(
			"expose: this server's processes cannot be reached from the host; the operator of this server can allow it with --expose")
	}
	return nil
}
