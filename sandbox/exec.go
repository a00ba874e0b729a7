package sandbox

import (
	"context"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/egress/decisions"
	"github.com/daycare-run/sandbox/fault"
)

// maxCommandBytes bounds a command with its environment: about what Linux can start.
const maxCommandBytes = 2 << 20

// Request is a command that a caller asks for, as it came.
type Request struct {
	// Command is a shell command line, Argv a program with its arguments: one of them is set.
	Command string
	Argv    []string
	// Login makes the shell a login shell. It goes with Command.
	Login bool
	// Permissions are the call's grants, as tags.
	Permissions []string
	// AllowedDomains are patterns of the names that the call wants to reach, PackageManagers the names of
	// presets of such patterns. They go with @network.
	AllowedDomains, PackageManagers []string
	// Home is where the home variables point, a directory that the call may write to; empty for the
	// home, or /tmp where the home is read-only.
	Home string
	// Cwd is relative to the working directory, or absolute and in it; empty is the working
	// directory.
	Cwd string
	// Env and Secrets are added to the environment. Secrets win, and are never logged.
	Env     map[string]string
	Secrets map[string]string
	// Timeout is nil for the default.
	Timeout *time.Duration
	// Stdin is nil for none.
	Stdin io.Reader
	// Signals are passed on to the command; nil for none.
	Signals <-chan syscall.Signal
	// MaxOutput is how many bytes of each stream are passed on; 0 for all.
	MaxOutput int64
	// Started is called once, when a container is ready and just before the command starts; nil
	// for none.
	Started func()
}

// Result is how a command ended.
type Result struct {
	dockerexec.Result
	// Cwd is where it ran, as a container path.
	Cwd string
	// Duration is from the call to the command's end.
	Duration time.Duration
	// Refused is what the command wanted to reach and did not, and MoreRefused how many further names
	// there were. Calls that run in one container at the same time have each other's in it, too.
	Refused     []decisions.Summary
	MoreRefused int
}

// Failed says that the command did not simply succeed.
func (r Result) Failed() bool {
	return r.ExitCode != 0 || r.Signal != 0 || r.TimedOut || r.CommandFault != ""
}

// Exec runs a command in the sandbox's container, and blocks until it and all that it started have
// ended. out receives its output, as dockerexec.Output says. Faults of the request are found before
// anything is started. When ctx ends, so does the command.
func (s *Service) Exec(ctx context.Context, id string, r Request, out dockerexec.Output) (Result, error) {
	begun := time.Now()
	box, err := s.Get(id)
	if err != nil {
		return Result{}, err
	}
	command, err := s.command(box, r)
	if err != nil {
		return Result{}, err
	}
	p, err := s.plan(ctx, box, ask{tags: r.Permissions, home: r.Home, domains: r.AllowedDomains, managers: r.PackageManagers})
	if err != nil {
		return Result{}, err
	}
	if err := s.makeTmpHome(ctx, p); err != nil {
		return Result{}, err
	}
	command.Env = environment(p.platform.env, homeVariables(p.home, p.tmp), r.Env, r.Secrets)
	var tally *decisions.Tally
	if p.spec.Egress.Profile != "" {
		tally = s.cfg.Decisions.Tally(p.spec.ContainerName())
		defer tally.End()
	}
	result, err := s.executor.Run(ctx, p.spec, command, out)
	if err != nil {
		return Result{}, err
	}
	if result.CwdFault != "" {
		return Result{}, fault.Invalid("cannot run in cwd %s", result.CwdFault)
	}
	ended := Result{Result: result, Cwd: command.Cwd, Duration: time.Since(begun)}
	if tally != nil {
		ended.Refused, ended.MoreRefused = tally.End()
	}
	return ended, nil
}

// command checks a request and makes it a command without its environment.
func (s *Service) command(box Sandbox, r Request) (dockerexec.Command, error) {
	c := dockerexec.Command{
		Argv: r.Argv, Shell: r.Command, Login: r.Login, Stdin: r.Stdin, Signals: r.Signals,
		Timeout: s.cfg.DefaultTimeout, Grace: s.cfg.KillGrace, MaxOutput: r.MaxOutput, Started: r.Started,
	}
	if err := checkCommand(r); err != nil {
		return c, err
	}
	if r.Timeout != nil {
		c.Timeout = *r.Timeout
		if c.Timeout <= 0 || c.Timeout > s.cfg.MaxTimeout {
			return c, fault.Invalid("timeoutMs %d is not between 1 and %d; what runs longer is a process, not an exec", c.Timeout.Milliseconds(), s.cfg.MaxTimeout.Milliseconds())
		}
	}
	paths, err := s.paths(box)
	if err != nil {
		return c, err
	}
	cwd, err := resolve(paths, box.WorkingDir, r.Cwd)
	if err != nil {
		return c, fault.Invalid("cwd: %v", err)
	}
	if !cwd.Within(box.WorkingDir) {
		return c, fault.Denied("cwd %q is outside of the working directory %s", cwd, box.WorkingDir)
	}
	c.Cwd = cwd.String()
	return c, nil
}

func checkCommand(r Request) error {
	size := len(r.Command)
	for i, arg := range r.Argv {
		if strings.Contains(arg, "\x00") {
			return fault.Invalid("argv[%d] has a NUL byte", i)
		}
		size += len(arg) + 1
	}
	for _, variables := range []map[string]string{r.Env, r.Secrets} {
		for name, value := range variables {
			size += len(name) + len(value) + 2
		}
	}
	switch {
	case r.Command != "" && len(r.Argv) > 0:
		return fault.Invalid("command and argv are both set; give one")
	case strings.TrimSpace(r.Command) == "" && len(r.Argv) == 0:
		return fault.Invalid("command is empty")
	case len(r.Argv) > 0 && r.Argv[0] == "":
		return fault.Invalid("argv[0] is empty")
	case strings.Contains(r.Command, "\x00"):
		return fault.Invalid("command has a NUL byte")
	case r.Login && r.Command == "":
		return fault.Invalid("login goes with command, not with argv")
	case size > maxCommandBytes:
		return fault.Invalid("the command and its environment have %d bytes, more than %d; pass what is large in stdin or a file", size, maxCommandBytes)
	}
	if err := checkVariables("env", r.Env); err != nil {
		return err
	}
	return checkVariables("secrets", r.Secrets)
}
