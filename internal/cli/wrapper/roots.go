package wrapper

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/pathmap"
)

// Where is where a command is run: everything about the host that its settings are read by. Paths are
// absolute, clean and without links, as far as those are there.
type Where struct {
	// Cwd is the working directory, and Home the caller's, for ~.
	Cwd, Home string
	// UsersDir is the service's.
	UsersDir string
	// User is whose sandbox to use; empty for the one in whose home Cwd is.
	User string
	// Real is a path with its links resolved.
	Real func(string) string
}

// DefaultUser has the sandbox of a command that is run outside of all homes.
const DefaultUser = "wrapper"

// inside is where the home is in a container; otherwise where a directory is whose own place is taken there.
const (
	insideHome = "/home"
	insideWork = "/workspace"
	insideTmp  = "/tmp"
)

// taken are the first components of what is the container's own.
var taken = []string{
	".daycare", "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc", "root", "run",
	"sbin", "shared", "sys", "tmp", "usr", "var",
}

// root is a directory of the host that the command sees, and where.
type root struct{ host, inside string }

// roots are what a command sees of the host; the first one has the working directory.
type roots []root

// find is the user, and the directory that has the working directory in it: the user's home, or else the
// working directory itself, which is mounted.
func (w Where) find() (user string, base root, mounted bool, err error) {
	if rest, ok := pathmap.CutDir(w.Cwd, w.UsersDir); ok {
		owner, below, _ := strings.Cut(rest, "/")
		if name, _, _ := strings.Cut(below, "/"); owner != "" && name == "home" {
			if w.User != "" && w.User != owner {
				return "", root{}, false, fmt.Errorf("--user %s: the working directory is in the home of %s: leave --user out, or run it elsewhere", w.User, owner)
			}
			return owner, root{path.Join(w.UsersDir, owner, "home"), insideHome}, false, nil
		}
	}
	user = w.User
	if user == "" {
		user = DefaultUser
	}
	if free(w.Cwd) {
		return user, root{w.Cwd, w.Cwd}, true, nil
	}
	return user, root{w.Cwd, insideWork}, true, nil
}

// free says that a path of the host can have the same name inside.
func free(name string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	return first != "" && first != "workspace" && !slices.Contains(taken, first)
}

// inside is where the command sees a path of the host, if it does.
func (r roots) inside(host string) (string, bool) {
	for _, one := range r {
		if rest, ok := pathmap.CutDir(host, one.host); ok {
			return path.Join(one.inside, rest), true
		}
	}
	return "", false
}

// within are the places inside that a path of the host holds, or that it is in.
func (r roots) within(host string) []string {
	if inside, ok := r.inside(host); ok {
		return []string{inside}
	}
	var all []string
	for _, one := range r {
		if pathmap.Within(one.host, host) {
			all = append(all, one.inside)
		}
	}
	return all
}

// resolve reads an entry of the settings.
func (w Where) resolve(field string, i int, entry string) (string, error) {
	fault := func(why string) (string, error) { return "", fmt.Errorf("%s[%d]: %q %s", field, i, entry, why) }
	name := strings.TrimSuffix(entry, "/**")
	switch {
	case entry == "":
		return fault("is empty; \".\" is the working directory")
	case strings.ContainsAny(name, "*?[]{}"):
		return fault("is a pattern; name files or directories, which are meant with all that is in them")
	case strings.Contains(name, "\x00"):
		return fault("has a NUL byte")
	case name == "": // it was /**
		name = "/"
	case name == "~" || strings.HasPrefix(name, "~/"):
		name = w.Home + name[1:]
	case strings.HasPrefix(name, "~"):
		return fault("names another user's home; write its path")
	case !strings.HasPrefix(name, "/"):
		name = w.Cwd + "/" + name
	}
	return w.Real(path.Clean(name)), nil
}

func (w Where) resolveAll(field string, entries []string) ([]string, error) {
	var all []string
	for i, entry := range entries {
		name, err := w.resolve(field, i, entry)
		if err != nil {
			return nil, err
		}
		all = append(all, name)
	}
	return all, nil
}
