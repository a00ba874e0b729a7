package sandbox

import (
	"context"
	"syscall"

	"github.com/daycare-run/sandbox/internal/process"
)

// StartProcess starts a durable process with what the sandbox holds, and blocks until its command runs. The intent is as
// it came: whose the process is, where it runs and what it may reach follow from the sandbox. Faults of the request are
// found before anything is started. The notices say what was changed of it.
func (s *Service) StartProcess(ctx context.Context, id string, n process.Intent, secrets map[string]string) (process.Record, []string, error) {
	c, err := s.call(id, confinement(n))
	if err != nil {
		return process.Record{}, nil, err
	}
	command, err := c.command(Request{Command: n.Command, Argv: n.Argv, Login: n.Login, Cwd: n.Cwd, Env: n.Env, Secrets: secrets})
	if err != nil {
		return process.Record{}, nil, err
	}
	leave, err := s.enter(ctx, c.Sandbox, false)
	if err != nil {
		return process.Record{}, nil, err
	}
	defer leave()
	p, err := s.resolver.plan(ctx, c, false)
	if err != nil {
		return process.Record{}, nil, err
	}
	if n.Home != "" { // or it is what it was at the first start
		n.Home = p.home
	}
	e := p.spec.Egress // a call's has no addresses
	n.UserID, n.SandboxID, n.Cwd = c.User.String(), c.ID.String(), command.Cwd
	n.Egress = process.Egress{Profile: e.Profile, Domains: e.Domains, Denied: e.Denied}
	return s.processes.Start(ctx, n, s.token, secrets)
}

func confinement(n process.Intent) Confinement {
	return Confinement{
		Permissions: n.Grants, AllowedDomains: n.AllowedDomains, PackageManagers: n.PackageManagers, Restrictions: n.Restrictions, Home: n.Home,
	}
}

// ofUser does something with what a sandbox's user has.
func ofUser[Answer any](s *Service, id string, do func(user string) (Answer, error)) (none Answer, _ error) {
	box, err := s.Get(id)
	if err != nil {
		return none, err
	}
	return do(box.User.String())
}

// Processes lists those of the sandbox's user, by their creation.
func (s *Service) Processes(id string) ([]process.Record, error) {
	return ofUser(s, id, func(user string) ([]process.Record, error) { return s.processes.List(user), nil })
}

// Process finds one of the sandbox's user. Another user's is not found.
func (s *Service) Process(id, processID string) (process.Record, error) {
	return ofUser(s, id, func(user string) (process.Record, error) { return s.processes.Get(user, processID) })
}

// StopProcess ends a process with a signal, and for good: it does not come back. It blocks until all of it
// has ended.
func (s *Service) StopProcess(ctx context.Context, id, processID string, signal syscall.Signal) (process.Record, error) {
	return ofUser(s, id, func(user string) (process.Record, error) {
		return s.processes.Stop(ctx, user, processID, signal)
	})
}

// StopProcesses ends all processes of the sandbox's user, with SIGTERM.
func (s *Service) StopProcesses(ctx context.Context, id string) ([]process.Record, error) {
	return ofUser(s, id, func(user string) ([]process.Record, error) { return s.processes.StopAll(ctx, user) })
}

// RemoveProcess ends a process and forgets it, with its log.
func (s *Service) RemoveProcess(ctx context.Context, id, processID string) error {
	box, err := s.Get(id)
	if err != nil {
		return err
	}
	return s.processes.Remove(ctx, box.User.String(), processID)
}

// ReadProcessLog returns the end of a process's log.
func (s *Service) ReadProcessLog(_ context.Context, id, processID string, q process.LogQuery) (process.LogPart, error) {
	log, err := s.openLog(id, processID)
	if err != nil {
		return process.LogPart{}, err
	}
	defer log.Close()
	return log.Read(q)
}

// FollowProcessLog gives the end of a process's log, and goes on as more comes. It returns nil when the
// process has ended for good and all was given, each's error, or the cause of ctx's end.
func (s *Service) FollowProcessLog(ctx context.Context, id, processID string, q process.LogQuery, each func(process.LogPart) error) error {
	log, err := s.openLog(id, processID)
	if err != nil {
		return err
	}
	defer log.Close()
	part, err := log.Read(q)
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
	return ofUser(s, id, func(user string) (*process.Log, error) { return s.processes.Log(user, processID) })
}
