//go:build linux

package agent

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// LookUp looks paths up as the tenant. By that gVisor's kernel releases what was removed there,
// which it keeps open otherwise. If a program of the tenant's watches files, it hears of the
// changes; of modified paths, that their content has changed. With others, programs have made the
// changes: of those that were made here it has heard. Nothing is told of what is found, and wherever
// a link leads, the tenant could have looked there, too.
func LookUp(uid uint32, paths, modified []string, others bool) error {
	heard := isWatched()
	if !heard {
		if own.forget(); others {
			return nil
		}
	}
	err := asTenant(uid, func() {
		switch {
		case heard && others:
			paths = own.others(paths, modified)
			modified = slices.DeleteFunc(modified, func(path string) bool { return !slices.Contains(paths, path) })
		case heard:
			own.told(paths)
		}
		for _, path := range paths {
			_ = unix.Lstat(path, &unix.Stat_t{})
		}
		if heard {
			nudge(paths, modified)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot look up what was removed: %w", err)
	}
	return nil
}
