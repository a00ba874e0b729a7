package sandbox

import (
	"fmt"
	"path"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/errs"
)

// maxBinds is how many bind mounts one call's container may have under gVisor, beside those that every
// container has. gVisor is handed a descriptor for each, and does not start when they come to the number 253,
// where it puts its stdio (google/gvisor#10232): with the engine's own mounts, that is from some 222 on.
const maxBinds = 200

// checkBinds refuses what gVisor could not start.
func checkBinds(spec dockerexec.Spec, less Restrictions) error {
	links := len(spec.Links) + len(linkDirs(spec))
	n := len(spec.Mounts) + len(spec.Masks) + len(spec.Pins) + links
	if n <= maxBinds {
		return nil
	}
	var lists []string
	if len(less.DenyRead) > 0 {
		lists = append(lists, "denyRead")
	}
	if len(less.DenyWrite) > 0 {
		lists = append(lists, "denyWrite")
	}
	if len(lists) == 0 {
		lists = []string{"permissions"}
	}
	also := ""
	if links > 0 {
		also = fmt.Sprintf(", %d of them for further names of hidden files", links)
	}
	return errs.Invalid("%s: this call needs %d mounts%s, and gVisor starts with at most %d: in what a call may write, each path that is hidden or not to be written needs one for every directory above it; name fewer, or less deep ones",
		strings.Join(lists, " and "), n, also, maxBinds)
}

// linkDirs are the directories that hold further names of hidden files, where they could be renamed, and that
// are no mounts otherwise.
func linkDirs(spec dockerexec.Spec) []string {
	mounted := map[string]bool{}
	for _, m := range spec.Mounts {
		mounted[m.Target] = true
	}
	for _, pin := range spec.Pins {
		mounted[pin.Target] = true
	}
	var dirs []string
	for _, link := range spec.Links {
		for dir := path.Dir(link.Target); writable(spec, dir) && !mounted[dir]; dir = path.Dir(dir) {
			mounted[dir] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
