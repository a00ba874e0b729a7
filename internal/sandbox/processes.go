package sandbox

import (
	"context"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/process"
)

// ProcessRequest is a durable process that a caller asks for, as it came. Its fields mean what those of
// Request do.
type ProcessRequest struct {
	// Name is for people.
	Name    string
	Command string
	Argv    []string
	Login   bool
	Confinement
	Cwd          string
	Env, Secrets map[string]string
	// KeepAlive starts it again whenever it ends by itself.
	KeepAlive bool
	// Ready and Expose are as in process.Intent.
	Ready  *process.Ready
	Expose []process.Port
}

// StartProcess starts a durable process with what the sandbox holds, and blocks until its command runs.
// Faults of the request are found before anything is started. The notices say what was changed of it.
func (s *Service) StartProcess(ctx context.Context, id string, r ProcessRequest) (process.Record, []string, error) {
	c, err := s.call(id, r.Confinement)
	if err != nil {
		return process.Record{}, nil, err
	}
	command, err := c.command(Request{Command: r.Command, Argv: r.Argv, Login: r.Login, Cwd: r.Cwd, Env: r.Env, Secrets: r.Secrets})
	if err != nil {
		return process.Record{}, nil, err
	}
	p, err := s.resolver.plan(ctx, c, false)
	if err != nil {
		return process.Record{}, nil, err
	}
	home := "" // unless one was asked for: then it is what it was at the first start
	if r.Home != "" {
		home = p.home
	}
	grants := r.Permissions
	if grants == nil {
		grants = []string{}
	}
	return s.processes.Start(ctx, process.Intent{
		UserID: c.User.id, SandboxID: c.ID.String(), Name: r.Name,
		Command: r.Command, Argv: r.Argv, Login: r.Login, Cwd: command.Cwd, Home: home, Env: r.Env,
		Grants: grants, AllowedDomains: r.AllowedDomains, PackageManagers: r.PackageManagers, Restrictions: process.Restrictions(r.Restrictions),
		Egress: process.Egress(p.spec.Egress), KeepAlive: r.KeepAlive, Ready: r.Ready, Expose: r.Expose,
	}, s.token, r.Secrets)
}

// Processes lists those of the sandbox's user, by their creation.
func (s *Service) Processes(id string) ([]process.Record, error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	return s.processes.List(box.User.id), nil
}

// Process finds one of the sandbox's user. Another user's is not found.
func (s *Service) Process(id, processID string) (process.Record, error) {
	box, err := s.Get(id)
	if err != nil {
		return process.Record{}, err
	}
	return s.processes.Get(box.User.id, processID)
}

// StopProcess ends a process with a signal, and for good: it does not come back. It blocks until all of it
// has ended.
func (s *Service) StopProcess(ctx context.Context, id, processID string, signal syscall.Signal) (process.Record, error) {
	box, err := s.Get(id)
	if err != nil {
		return process.Record{}, err
	}
	return s.processes.Stop(ctx, box.User.id, processID, strings.TrimPrefix(unix.SignalName(signal), "SIG"))
}

// StopProcesses ends all processes of the sandbox's user, with SIGTERM.
func (s *Service) StopProcesses(ctx context.Context, id string) ([]process.Record, error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	return s.processes.StopAll(ctx, box.User.id)
}

// RemoveProcess ends a process and forgets it, with its log.
func (s *Service) RemoveProcess(ctx context.Context, id, processID string) error {
	box, err := s.Get(id)
	if err != nil {
		return err
	}
	return s.processes.Remove(ctx, box.User.id, processID)
}

// LogQuery says how much of a process's log is meant: the last Lines of it, and of those at most the last
// Bytes. 0 is the default.
type LogQuery struct {
	Lines int   // at most MaxLogLines; default 100
	Bytes int64 // at most MaxLogBytes; default MaxLogBytes
}

// Bounds of a LogQuery.
const (
	MaxLogLines = 10_000
	MaxLogBytes = 1 << 20
)

// LogPart is a piece of a process's log.
type LogPart struct {
	Data []byte
	// Truncated says that the bytes asked for were not enough for the lines.
	Truncated bool
	// Notice tells of something that is not in the log, such as that it was shortened; empty for none.
	Notice string
}

// ReadProcessLog returns the end of a process's log.
func (s *Service) ReadProcessLog(_ context.Context, id, processID string, q LogQuery) (LogPart, error) {
	log, err := s.openLog(id, processID)
	if err != nil {
		return LogPart{}, err
	}
	defer log.Close()
	return tail(log, q)
}

// FollowProcessLog gives the end of a process's log, and goes on as more comes. It returns nil when the
// process has ended for good and all was given, each's error, or the cause of ctx's end.
func (s *Service) FollowProcessLog(ctx context.Context, id, processID string, q LogQuery, each func(LogPart) error) error {
	log, err := s.openLog(id, processID)
	if err != nil {
		return err
	}
	defer log.Close()
	part, err := tail(log, q)
	if err != nil {
		return err
	}
	if len(part.Data) > 0 {
		if err := each(part); err != nil {
			return err
		}
	}
	return log.Follow(ctx, func(c process.Chunk) error { return each(LogPart{Data: c.Bytes, Notice: c.Notice}) })
}

func (s *Service) openLog(id, processID string) (*process.Log, error) {
	box, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	return s.processes.Log(box.User.id, processID)
}

func tail(log *process.Log, q LogQuery) (LogPart, error) {
	lines, size := q.Lines, q.Bytes
	if lines == 0 {
		lines = 100
	}
	if size == 0 {
		size = MaxLogBytes
	}
	if lines < 0 || lines > MaxLogLines {
		return LogPart{}, errs.Invalid("lines %d is not between 1 and %d", lines, MaxLogLines)
	}
	if size < 0 || size > MaxLogBytes {
		return LogPart{}, errs.Invalid("bytes %d is not between 1 and %d", size, MaxLogBytes)
	}
	data, err := log.Tail(lines, size)
	return LogPart{Data: data, Truncated: int64(len(data)) == size}, err
}
