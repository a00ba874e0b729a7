//go:build linux

package agent

import (
	"path/filepath"
	"strings"

	"github.com/daycare-run/sandbox/internal/agent/launch"
	"github.com/daycare-run/sandbox/internal/agent/spawn"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// defaultPath is the PATH of an environment without one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// prepare turns a command into a process of the user uid, with the places where the shell or the
// program may be.
func prepare(start launch.Command, uid uint32) (spawn.Process, wire.Exit) {
	p := spawn.Process{Env: start.Env, Dir: start.Cwd, UID: uid}
	switch {
	case start.Shell != "":
		option := "-c"
		if start.Login {
			option = "-lc"
		}
		p.Args = []string{option, "--", start.Shell} // a line may begin with a dash
		p.Programs = shellPrograms(start.Env, start.Cwd)
	case len(start.Args) > 0:
		p.Args, p.Programs = start.Args[1:], places(start.Args[0], pathOf(start.Env), start.Cwd)
	default:
		return p, wire.Exit{Code: 127, Fault: wire.FaultCommand, Message: "empty command"}
	}
	if len(p.Programs) == 0 {
		return p, wire.Exit{Code: 127, Fault: wire.FaultCommand,
			Message: "command not found: PATH is empty"}
	}
	return p, wire.Exit{}
}

// shellPrograms returns where bash may be, then where sh may be, for an image without bash.
func shellPrograms(env []string, dir string) []spawn.Program {
	path := pathOf(env)
	return append(places("bash", path, dir), places("sh", path, dir)...)
}

func pathOf(env []string) string {
	path := defaultPath
	for _, entry := range env {
		if value, is := strings.CutPrefix(entry, "PATH="); is {
			path = value
		}
	}
	return path
}

// places returns where a program may be, as execvp(3) looks for it, in the command's own PATH and
// directory. The command's own process finds out whether it is there, with the rights of its user.
func places(name, path, dir string) []spawn.Program {
	if strings.Contains(name, "/") {
		return []spawn.Program{{Path: name, Name: name}}
	}
	var found []spawn.Program
	for _, entry := range filepath.SplitList(path) {
		if !filepath.IsAbs(entry) {
			entry = filepath.Join(dir, entry)
		}
		found = append(found, spawn.Program{Path: entry + "/" + name, Name: name})
	}
	return found
}
