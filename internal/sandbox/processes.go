package sandbox

import (
	"context"
	"syscall"
	"time"

	"github.com/daycare-run/sandbox/internal/process"
)

// StartProcess starts a durable process with what the sandbox holds, and blocks until its command
// runs. The intent is as it came: the process's user, directory and network follow from the
// sandbox. Faults of the request are found before anything is started. The notices say what was
// changed in it.
func (s *Service) StartProcess(ctx context.Context, id string, n process.Intent,
	secrets map[string]string) (process.Record, []string, error) {
	c, err := s.call(id, n.Confinement())
	if err != nil {
		return process.Record{}, nil, err
	}
	command, err := s.command(c,
		Request{Command: n.Command, Argv: n.Argv, Login: n.Login, Cwd: n.Cwd, Env: n.Env,
			Secrets: secrets})
	if err != nil {
		return process.Record{}, nil, err
	}
	leave, err := s.enter(ctx, c.Sandbox, false)
	if err != nil {
		return process.Record{}, nil, err
	}
	defer leave()
	p, err := s.plan(ctx, c, false)
	if err != nil {
		return process.Record{}, nil, err
	}
	if n.Home != "" { // an empty one stays empty, or later starts would have the first one's
		n.Home = p.Home
	}
	e := p.Spec.Egress // the egress of a call has no addresses
	n.UserID, n.SandboxID, n.Cwd = c.User.String(), c.ID.String(), command.Cwd
	n.Egress = process.Egress{Profile: e.Profile, Domains: e.Domains, Denied: e.Denied}
	return s.processes.Start(ctx, n, s.token, secrets, &p)
}

// ofUser calls do for a sandbox's user.
func ofUser[Answer any](s *Service, id string,
	do func(user string) (Answer, error)) (none Answer, _ error) {
	box, err := s.Get(id)
	if err != nil {
		return none, err
	}
	return do(box.User.String())
}

// Processes lists the processes of the sandbox's user, in the order of their creation.
func (s *Service) Processes(id string) ([]process.Record, error) {
	return ofUser(s, id, func(user string) ([]process.Record, error) {
		return s.processes.List(user), nil
	})
}

// AllProcesses lists the processes of all users for whom the service's callers act, in the order of
// their creation.
func (s *Service) AllProcesses() []process.Record { return s.processes.ListOf(s.scope.HasName) }

// Process finds a process of the sandbox's user. It does not find another user's.
func (s *Service) Process(id, processID string) (process.Record, error) {
	return ofUser(s, id, func(user string) (process.Record, error) {
		return s.processes.Get(user, processID)
	})
}

// WaitProcess waits for a process's end or, with ready, for its readiness, but no longer than limit;
// inTime says whether that came. It returns the process as it is then.
func (s *Service) WaitProcess(ctx context.Context, id, processID string, ready bool,
	limit time.Duration) (r process.Record, inTime bool, _ error) {
	box, err := s.Get(id)
	if err != nil {
		return r, false, err
	}
	return s.processes.Wait(ctx, box.User.String(), processID, ready, limit)
}

// StopProcess ends a process with a signal, for good: it is not started again. It blocks until all
// of it has ended.
func (s *Service) StopProcess(ctx context.Context, id, processID string,
	signal syscall.Signal) (process.Record, error) {
	return ofUser(s, id, func(user string) (process.Record, error) {
		return s.processes.Stop(ctx, user, processID, signal)
	})
}

// StopProcesses ends all processes of the sandbox's user, with SIGTERM.
func (s *Service) StopProcesses(ctx context.Context, id string) ([]process.Record, error) {
	return ofUser(s, id, func(user string) ([]process.Record, error) {
		return s.processes.StopAll(ctx, user)
	})
}

// RemoveProcess ends a process and forgets it, with its log.
func (s *Service) RemoveProcess(ctx context.Context, id, processID string) error {
	box, err := s.Get(id)
	if err != nil {
		return err
	}
	return s.processes.Remove(ctx, box.User.String(), processID)
}

// ReadProcessLog returns the end or the beginning of a process's log.
func (s *Service) ReadProcessLog(_ context.Context, id, processID string,
	q process.LogQuery) (process.LogPart, error) {
	log, err := s.openLog(id, processID)
	if err != nil {
		return process.LogPart{}, err
	}
	defer log.Close()
	return log.Read(q)
}

// FollowProcessLog passes the end of a process's log to each, or with First all of it, and then
// more as it comes. It returns nil when the process has ended for good and all was passed on, or
// else each's error, or the cause of ctx's end.
func (s *Service) FollowProcessLog(ctx context.Context, id, processID string, q process.LogQuery,
	each func(process.LogPart) error) error {
	log, err := s.openLog(id, processID)
	if err != nil {
		return err
	}
	defer log.Close()
	var part process.LogPart
	if !q.First {
		part, err = log.Read(q)
	}
	if err != nil {
		return err
	}
	if len(part.Data) > 0 {
		if err := each(part); err != nil {
			return err
		}
	}
	return log.Follow(ctx, each)
}

func (s *Service) openLog(id, processID string) (*process.Log, error) {
	return ofUser(s, id, func(user string) (*process.Log, error) {
		return s.processes.Log(user, processID)
	})
}
