package hostfs

import (
	"fmt"
	"path"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/pathmap"
)

// maxName is the length in bytes of the longest name.
const maxName = 4096

// checkName returns an error of class ErrInvalidArgument unless name is relative, clean, and stays
// beneath the root. All bytes but NUL are allowed, UTF-8 or not.
func checkName(name string) error {
	switch {
	case name == "":
		return errs.Invalid("the name is empty")
	case len(name) > maxName:
		return errs.Invalid("the name has %d bytes, more than %d", len(name), maxName)
	case strings.Contains(name, "\x00"):
		return errs.Invalid("%s holds a NUL byte", quoted(name))
	case name[0] == '/':
		return errs.Invalid("%s is not relative to the root", quoted(name))
	case name == ".." || strings.HasPrefix(name, "../"):
		return errs.Invalid("%s leads out of the root", quoted(name))
	case path.Clean(name) != name:
		return errs.Invalid(
			`%s is not clean: a component is empty, "." or "..", or it ends with a slash`,
			quoted(name))
	}
	return nil
}

// checkEntry is checkName for operations that need a directory entry, which the root itself is not.
func checkEntry(name string) error {
	if name == "." {
		return errs.Invalid(`"." is the root directory itself`)
	}
	return checkName(name)
}

// within reports whether name is dir or lies beneath it, by whole components.
func within(name, dir string) bool {
	return dir == "." || pathmap.Within(name, dir)
}

// quoted returns a name in quotes, cut to a length that fits a message.
func quoted(name string) string {
	const limit = 200
	if len(name) > limit {
		return fmt.Sprintf("%q...", name[:limit])
	}
	return fmt.Sprintf("%q", name)
}
