// Package pathmap translates between paths on the host and paths inside a container, over the list
// of mounts that the container has. It decides on names alone: it opens nothing, follows no
// symbolic link and knows nothing of modes, so a path that maps is a path that has a name, never a
// permission.
//
// No error of this package has a host path in its text, because texts travel to the caller.
package pathmap

import (
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"
)

// MaxLen is the length in bytes of the longest path.
const MaxLen = 4096

// HostPath is an absolute, clean path on the host. ParseHost makes it; the zero value is no path,
// and whatever takes a HostPath refuses it. The bytes need not be UTF-8.
type HostPath struct{ name string }

// ContainerPath is an absolute, clean path inside a container. ParseContainer and Resolve make it;
// the zero value is no path, and whatever takes a ContainerPath refuses it. The bytes need not be
// UTF-8.
type ContainerPath struct{ name string }

// ParseHost returns name as a HostPath. The error is of class ErrInvalidArgument when name
// is empty, relative, not clean, longer than MaxLen, or holds a NUL or another control character
// than tab and newline. A name that is not clean is refused, not cleaned: on the host, "a/../b" and
// "b" differ when a is a symbolic link.
func ParseHost(name string) (HostPath, error) {
	if fault := check(name); fault != "" {
		return HostPath{}, fmt.Errorf("cannot use host path: it %s: %w", fault,
			errdefs.ErrInvalidArgument)
	}
	return HostPath{name}, nil
}

// ParseContainer returns name as a ContainerPath. The error, of class ErrInvalidArgument, has the
// same causes as that of ParseHost.
func ParseContainer(name string) (ContainerPath, error) {
	if fault := check(name); fault != "" {
		return ContainerPath{}, containerFault(name, fault)
	}
	return ContainerPath{name}, nil
}

// Resolve returns the path that name means to someone whose working directory is p: name itself if
// it is absolute, else name under p. The result is clean; "." and ".." are resolved by name, as if
// no component were a symbolic link, so only the result may be checked and used, never name. An
// empty name means p. The error is of class ErrInvalidArgument.
func (p ContainerPath) Resolve(name string) (ContainerPath, error) {
	if p.IsZero() {
		return ContainerPath{}, containerFault("", "is empty")
	}
	// Cleaning could drop the component that holds a bad byte, so the bytes are checked first.
	if fault := checkBytes(name); fault != "" {
		return ContainerPath{}, containerFault(name, fault)
	}
	return p.ResolveName(name)
}

// ResolveName is Resolve for the names of files that may exist already, whose tenant chose them:
// all bytes but NUL may be in it. What it returns is for file calls alone; a mount or a working
// directory has no control characters.
func (p ContainerPath) ResolveName(name string) (ContainerPath, error) {
	switch {
	case p.IsZero():
		return ContainerPath{}, containerFault("", "is empty")
	case len(name) > MaxLen:
		return ContainerPath{}, containerFault(name, tooLong(name))
	case strings.Contains(name, "\x00"):
		return ContainerPath{}, containerFault(name, "holds a NUL byte")
	}
	if !strings.HasPrefix(name, "/") {
		name = p.name + "/" + name
	}
	if name = path.Clean(name); len(name) > MaxLen {
		return ContainerPath{}, containerFault(name, tooLong(name))
	}
	return ContainerPath{name}, nil
}

// CheckControl returns an error of class ErrInvalidArgument for a name with a NUL or another
// control character than tab and newline.
func CheckControl(name string) error {
	if fault := controlFault(name); fault != "" {
		return containerFault(name, fault)
	}
	return nil
}

// Within reports whether p is dir or lies under it. Whole components are compared: /home/user10 is
// not within /home/user1. A zero path is within nothing and holds nothing.
func (p ContainerPath) Within(dir ContainerPath) bool {
	return Within(p.name, dir.name)
}

// IsZero reports whether p is the zero value, which is no path.
func (p ContainerPath) IsZero() bool { return p.name == "" }

// IsZero reports whether p is the zero value, which is no path.
func (p HostPath) IsZero() bool { return p.name == "" }

// String returns the path, or "" for the zero value.
func (p ContainerPath) String() string { return p.name }

// String returns the path, or "" for the zero value. It is for system calls, Docker and logs; it
// must not reach a caller.
func (p HostPath) String() string { return p.name }

// check returns what is wrong with name as a path, as the rest of a sentence that begins with "it",
// or "".
func check(name string) string {
	if fault := checkBytes(name); fault != "" {
		return fault
	}
	switch {
	case name == "":
		return "is empty"
	case name[0] != '/':
		return "is not absolute"
	case path.Clean(name) != name:
		return `is not clean: a component is empty, "." or "..", or it ends with a slash`
	}
	return ""
}

// checkBytes is the part of check that also holds for a path that is not yet resolved.
func checkBytes(name string) string {
	if len(name) > MaxLen {
		return tooLong(name)
	}
	return controlFault(name)
}

func tooLong(name string) string {
	return fmt.Sprintf("has %d bytes, more than %d", len(name), MaxLen)
}

func controlFault(name string) string {
	for i := range len(name) {
		if c := name[i]; c < ' ' && c != '\t' && c != '\n' {
			return fmt.Sprintf("holds the control character %#02x at byte %d", c, i)
		}
	}
	return ""
}

func containerFault(name, fault string) error {
	return fmt.Errorf("cannot use path %s: it %s: %w", shown(name), fault,
		errdefs.ErrInvalidArgument)
}

// shown quotes as much of a container path as a message should show.
func shown(name string) string {
	const limit = 200
	if len(name) > limit {
		return fmt.Sprintf("%q...", name[:limit])
	}
	return fmt.Sprintf("%q", name)
}

// Within reports whether a clean path is dir or lies below it. Whole components are compared.
func Within(name, dir string) bool {
	_, ok := CutDir(name, dir)
	return ok
}

// CutDir returns the rest of a clean path below dir, without a leading slash, and whether it is dir
// or lies below it. The rest of dir itself is "".
func CutDir(name, dir string) (rest string, within bool) {
	switch {
	case dir == "" || len(name) < len(dir):
		return "", false
	case len(name) == len(dir):
		return "", name == dir
	case dir == "/":
		return name[1:], true
	case name[len(dir)] == '/' && name[:len(dir)] == dir: // one byte tells most of them apart
		return name[len(dir)+1:], true
	}
	return "", false
}

// join is the inverse of CutDir.
func join(dir, rest string) string {
	switch {
	case rest == "":
		return dir
	case dir == "/":
		return dir + rest
	}
	return dir + "/" + rest
}
