package wrapper

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/pathmap"
)

// Where is where a command is run: everything about the host that is needed to read its settings.
// Paths are absolute, clean and, as far as they exist, without links.
type Where struct {
	// Cwd is the working directory, and Home the caller's home, for ~.
	Cwd, Home string
	// UsersDir is the service's setting.
	UsersDir string
	// User is the user whose sandbox to use; empty for the user whose home contains Cwd.
	User string
	// Real returns a path with its links resolved.
	Real func(string) string
}

// DefaultUser is the user of a command that is run outside of all homes.
const DefaultUser = "wrapper"

// Places in a container: of the home, of a working directory whose own path is taken there, and of
// /tmp.
const (
	insideHome = "/home"
	insideWork = "/workspace"
	insideTmp  = "/tmp"
)

// taken are the first components of the paths that the container itself uses.
var taken = []string{
	".daycare", "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt",
	"proc", "root", "run", "sbin", "shared", "sys", "tmp", "usr", "var",
}

// root is a directory of the host that the command sees, and where it sees it.
type root struct{ host, inside string }

// roots are what a command sees of the host; the first root has the working directory.
type roots []root

// find returns the user and the directory that has the working directory in it: the user's home, or
// else the working directory itself, which is mounted.
func (w Where) find() (user string, base root, mounted bool, err error) {
	if rest, ok := pathmap.CutDir(w.Cwd, w.UsersDir); ok {
		owner, below, _ := strings.Cut(rest, "/")
		if name, _, _ := strings.Cut(below, "/"); owner != "" && name == "home" {
			if w.User != "" && w.User != owner {
				return "", root{}, false,
					fmt.Errorf("--user %s: the working directory is in the home of %s: leave --user out, or run it elsewhere",
						w.User, owner)
			}
			return owner, root{path.Join(w.UsersDir, owner, "home"), insideHome}, false, nil
		}
	}
	user = w.User
	if user == "" {
		user = DefaultUser
	}
	if free(w.Cwd) || pathmap.Within(w.Cwd, insideWork) {
		return user, root{w.Cwd, w.Cwd}, true, nil
	}
	return user, root{w.Cwd, insideWork}, true, nil
}

// free reports whether a path of the host can have the same name inside.
func free(name string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	return first != "" && first != "workspace" && !slices.Contains(taken, first)
}

// inside returns where the command sees a path of the host, if it does.
func (r roots) inside(host string) (string, bool) {
	for _, one := range r {
		if rest, ok := pathmap.CutDir(host, one.host); ok {
			return path.Join(one.inside, rest), true
		}
	}
	return "", false
}

// within returns the place inside of a path of the host, or of the roots that the path contains.
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

// resolve returns the absolute path of an entry of the settings.
func (w Where) resolve(field string, i int, entry string) (string, error) {
	fault := func(why string) (string, error) {
		return "", fmt.Errorf("%s[%d]: %q %s", field, i, entry, why)
	}
	name := strings.TrimSuffix(entry, "/**")
	switch {
	case entry == "":
		return fault("is empty; \".\" is the working directory")
	case strings.ContainsAny(name, "*?[]{}"):
		return fault(
			"is a pattern; name files or directories, which are meant with all that is in them")
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
