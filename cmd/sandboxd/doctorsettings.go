package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
	"github.com/daycare-run/sandbox/internal/policy"
)

// doctorSettings are the settings that doctor checks the host against.
type doctorSettings struct {
	config.Config
	from      string // where they were read, for a person
	err       error
	askDocker doctor.AskDocker // set by hostChecks
}

// findSettings reads the named file, with this shell's variables. Without a name it takes the settings with which the
// service behind the socket was started, overridden by this shell's variables; without a service, what sandboxd would
// read here.
func findSettings(named, socket string) *doctorSettings {
	environ, file, pid := os.Environ(), named, 0
	if named == "" {
		if p, ok := startOf(socket); ok {
			pid, file = p.pid, p.settings
			environ = append(p.variables, environ...)
		}
	}
	s := &doctorSettings{from: "defaults"}
	var found string
	if s.Config, found, s.err = config.Find(file, environ); found != "" {
		s.from = found
	}
	if s.err == nil {
		_, s.err = policy.NewPresets(s.Egress.Presets)
	}
	if pid != 0 {
		s.from += fmt.Sprintf(", as of the service (pid %d)", pid)
	}
	return s
}

// processStart describes how a process was started.
type processStart struct {
	pid       int
	settings  string   // --settings as a path from here; empty for none
	variables []string // SANDBOXD_*
}

// startOf finds out how the service behind a socket was started. Only root may read that.
func startOf(socket string) (processStart, bool) {
	pid := servicePID(socket)
	if pid == 0 {
		return processStart{}, false
	}
	proc := fmt.Sprintf("/proc/%d", pid)
	environ, err := os.ReadFile(proc + "/environ")
	if err != nil {
		return processStart{}, false
	}
	cmdline, err := os.ReadFile(proc + "/cmdline")
	if err != nil {
		return processStart{}, false
	}
	s := processStart{pid: pid}
	s.variables = slices.DeleteFunc(strings.Split(string(environ), "\x00"), func(v string) bool { return !strings.HasPrefix(v, "SANDBOXD_") })
	if s.settings = settingsFlag(strings.Split(string(cmdline), "\x00")); s.settings != "" {
		s.settings = pathInProcess(proc, s.settings)
	}
	return s, true
}

// servicePID returns the id of the process behind a socket, or 0 if there is none or it cannot be seen from here.
func servicePID(socket string) int {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	var peer *unix.Ucred
	if controlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); controlErr != nil || err != nil {
		return 0
	}
	return int(peer.Pid)
}

// pathInProcess returns a path of another process as a path of this one.
func pathInProcess(proc, path string) string {
	if cwd, err := os.Readlink(proc + "/cwd"); err == nil && !filepath.IsAbs(path) {
		path = filepath.Join(cwd, path)
	}
	theirs, err := os.Stat(proc + "/root")
	ours, ourErr := os.Stat("/")
	if err == nil && ourErr == nil && os.SameFile(theirs, ours) {
		return path
	}
	return filepath.Join(proc, "root", path) // it may be in a container
}

// settingsFlag returns the value of --settings in a command line, or "".
func settingsFlag(args []string) (value string) {
	for i, arg := range args {
		for _, flag := range []string{"--settings", "-s"} {
			if rest, ok := strings.CutPrefix(arg, flag+"="); ok {
				value = rest
			} else if arg == flag && i+1 < len(args) {
				value = args[i+1]
			}
		}
	}
	return value
}
