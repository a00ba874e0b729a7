package rootfs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/pathmap"
)

// This file has all reserved paths: those inside at which nothing further is mounted, and those of the host that are
// never mounted.

// EventsPath is where a call with @events finds the caller's control socket.
const EventsPath = "/run/daycare/control.sock"

// processesDir is the directory of a user's folder that holds those of durable processes.
const processesDir = "processes"

// reservedInside are the places inside that belong to the container. A further mount is neither in them nor around
// them.
var reservedInside = []string{
	"/.daycare", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc",
	"/root", "/run", "/sbin", "/shared/skills", "/sys", "/tmp", "/usr", "/var",
}

// CheckTarget refuses a place for a further mount that belongs to the container.
func CheckTarget(field string, target pathmap.ContainerPath) error {
	for _, name := range reservedInside {
		if pathmap.Within(target.String(), name) || pathmap.Within(name, target.String()) {
			return errs.Invalid("%s: %q is not free: %s is the container's; take a place such as /mnt/data", field, target, name)
		}
	}
	return nil
}

// CheckSource refuses a path of the host that may not be mounted: it is in none of AllowedMountRoots, or reserved.
func (p *Planner) CheckSource(field string, source pathmap.HostPath) error {
	allowed := slices.ContainsFunc(p.cfg().AllowedMountRoots, func(root string) bool { return pathmap.Within(source.String(), root) })
	if !allowed {
		return errs.Denied("%s: %q is in none of allowedMountRoots; the operator may add it, or a directory above it, to that setting", field, source)
	}
	if why := p.reserved(source); why != "" {
		return errs.Denied("%s: %s", field, why)
	}
	return nil
}

// reserved returns why a path of the host is never mounted, or "": it is the service's own, or is seen only as a home,
// where secrets are hidden. Paths are compared by where they really are, so that a link of the operator's is not
// another name for a home.
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
