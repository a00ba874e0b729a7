package rootfs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// This file has all reserved paths: container paths at which no further mount may be, and host
// paths that are never mounted.

// EventsPath is where a call with @events finds the caller's control socket.
const EventsPath = "/run/daycare/control.sock"

// processesDir is the directory in a user's folder that holds the folders of durable processes.
const processesDir = "processes"

// reservedInside are the container paths that belong to the container. A further mount may be
// neither in them nor around them.
var reservedInside = []string{
	"/.daycare", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32",
	"/opt", "/proc", "/root", "/run", "/sbin", "/shared/skills", "/sys", "/tmp", "/usr", "/var",
}

// CheckTarget refuses a further mount's place if it belongs to the container.
func CheckTarget(field string, target pathmap.ContainerPath) error {
	for _, name := range reservedInside {
		if pathmap.Within(target.String(), name) || pathmap.Within(name, target.String()) {
			return errs.Invalid(
				"%s: %q is not free: %s is the container's; take a place such as /mnt/data", field,
				target, name)
		}
	}
	return nil
}

// CheckSource refuses a host path that may not be mounted: it is in none of AllowedMountRoots, or
// reserved.
func (p *Planner) CheckSource(field string, source pathmap.HostPath) error {
	allowed := slices.ContainsFunc(p.cfg().AllowedMountRoots, func(root string) bool {
		return pathmap.Within(source.String(), root)
	})
	if !allowed {
		return errs.Denied(
			"%s: %q is in none of allowedMountRoots; the operator may add it, or a directory above it, to that setting",
			field, source)
	}
	if why := p.reserved(source); why != "" {
		return errs.Denied("%s: %s", field, why)
	}
	return nil
}

// reserved returns why a host path is never mounted, or "": it is the service's own, or may be seen
// only as part of a home, in which secrets are hidden. Paths are compared by where they really are,
// so that an operator's link is not another name for a home.
func (p *Planner) reserved(source pathmap.HostPath) string {
	users, err := pathmap.ParseHost(p.cfg().UsersDir)
	if err != nil {
		return "it cannot be compared with usersDir"
	}
	at, usersAt := p.real(source), p.real(users)
	if pathmap.Within(usersAt, at) {
		return "it holds the homes of users, whose secrets would be seen"
	}
	rest, inUsers := pathmap.CutDir(at, usersAt)
	if !inUsers { // usersDir may lie in dataDir
		for _, own := range p.cfg().own {
			if pathmap.Within(at, own) || pathmap.Within(own, at) {
				return "it holds, or is in, a path of the service's own"
			}
		}
		return ""
	}
	user, inUser, _ := strings.Cut(rest, "/")
	first, _, _ := strings.Cut(inUser, "/")
	inHome, below := strings.CutPrefix(inUser, "home/")
	switch {
	case strings.HasPrefix(user, ".") || strings.HasPrefix(first, ".") || first == processesDir:
		return "it is in a directory of the service's own"
	case inUser == "" || inUser == "home":
		return "it holds a user's home, whose secrets would be seen; mount a directory in it"
	case !below:
		return ""
	}
	for _, name := range append(policy.DeniedInHome(), "apps") {
		if pathmap.Within(inHome, name) || pathmap.Within(name, inHome) {
			return fmt.Sprintf("it holds, or is in, %s of a home, which is hidden from every call",
				name)
		}
	}
	return ""
}
