package probes

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
	"github.com/daycare-run/sandbox/internal/policy"
)

// Settings are the settings that doctor checks the host against.
type Settings struct {
	config.Config
	// From is where they were read, for a person; Err is what is wrong with them.
	From string
	Err  error
	// AskDocker asks their Docker about itself. Host sets it.
	AskDocker doctor.AskDocker
}

// FindSettings reads the file named here, by the flag or by SANDBOXD_SETTINGS, with this shell's
// variables. If none is named it takes the settings with which the service behind the socket was
// started, overridden by this shell's variables; without a service, what sandboxd would read here.
func FindSettings(named, socket string) *Settings {
	environ, pid := os.Environ(), 0
	var at func(path string) string
	if named = cmp.Or(named, os.Getenv(settingsVariable)); named == "" {
		if p, ok := startOf(socket); ok {
			pid, named, at = p.pid, p.settings, p.path
			environ = append(p.variables, environ...)
		}
	}
	s := &Settings{From: "defaults"}
	var found string
	if s.Config, found, s.Err = config.Find(named, environ, at); found != "" {
		s.From = found
	}
	if s.Err == nil {
		_, s.Err = policy.NewPresets(s.Egress.Presets)
	}
	if pid != 0 {
		s.From += fmt.Sprintf(", as of the service (pid %d)", pid)
	}
	return s
}

// settingsVariable names the settings file of a process that was given no flag.
const settingsVariable = "SANDBOXD_SETTINGS"

// processStart describes how a process was started.
type processStart struct {
	pid       int
	settings  string   // the settings file that it was told to read, as it calls it; empty for none
	variables []string // the other SANDBOXD_*
}

// startOf finds out how the service behind a socket was started. Only root may read that.
func startOf(socket string) (processStart, bool) {
	s := processStart{pid: servicePID(socket)}
	if s.pid == 0 {
		return processStart{}, false
	}
	environ, err := os.ReadFile(s.proc() + "/environ")
	if err != nil {
		return processStart{}, false
	}
	cmdline, err := os.ReadFile(s.proc() + "/cmdline")
	if err != nil {
		return processStart{}, false
	}
	s.settings = settingsFlag(strings.Split(string(cmdline), "\x00"))
	for _, v := range strings.Split(string(environ), "\x00") {
		if file, is := strings.CutPrefix(v, settingsVariable+"="); is {
			s.settings = cmp.Or(s.settings, file)
		} else if strings.HasPrefix(v, "SANDBOXD_") {
			s.variables = append(s.variables, v)
		}
	}
	return s, true
}

func (s processStart) proc() string { return fmt.Sprintf("/proc/%d", s.pid) }

// servicePID returns the id of the process behind a socket, or 0 if there is none or it cannot be
// seen from here.
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
	if controlErr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); controlErr != nil || err != nil {
		return 0
	}
	return int(peer.Pid)
}

// path returns a path of the process as a path of this one.
func (s processStart) path(theirs string) string {
	if cwd, err := os.Readlink(s.proc() + "/cwd"); err == nil && !filepath.IsAbs(theirs) {
		theirs = filepath.Join(cwd, theirs)
	}
	root, err := os.Stat(s.proc() + "/root")
	ours, ourErr := os.Stat("/")
	if err == nil && ourErr == nil && os.SameFile(root, ours) {
		return theirs
	}
	return filepath.Join(s.proc(), "root", theirs) // it may be in a container
}

// settingsFlag returns the value of --settings in a command line, or "".
func settingsFlag(args []string) string {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	value := flags.StringP("settings", "s", "", "")
	_ = flags.Parse(args[1:]) // what runs has accepted them
	return *value
}
