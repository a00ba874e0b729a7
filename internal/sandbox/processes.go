package sandbox

import (
	"context"

	"github.com/daycare-run/sandbox/internal/workload/process"
)

// StartProcess starts a durable process with what the sandbox holds, and blocks until its command
// runs. The intent is as it came: the process's user, directory and network follow from the
// sandbox. Faults of the request are found before anything is started. The notices say what was
// changed in it.
func (s *Service) StartProcess(ctx context.Context, id string, n process.Intent,
	secrets map[string]string) (process.Record, []string, error) {
	c, err := s.call(id, n.Confinement())
	if err == nil && n.InSandbox {
		err = s.checkInside(c.Sandbox, c.Confinement)
	}
	if err != nil {
		return process.Record{}, nil, err
	}
	c.Detached = true
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
	n.UserID, n.SandboxID, n.Cwd = c.User.String(), c.ID.String(), command.Cwd
	if n.InSandbox {
		return s.processes.Start(ctx, n, s.token, secrets, nil)
	}
	p, err := s.plan(ctx, c, false)
	if err != nil {
		return process.Record{}, nil, err
	}
	if n.Home != "" { // an empty one stays empty, or later starts would have the first one's
		n.Home = p.Home
	}
	e := p.Spec.Egress // the egress of a call has no addresses
	n.Egress = process.Egress{Profile: e.Profile, Domains: e.Domains, Denied: e.Denied}
	return s.processes.Start(ctx, n, s.token, secrets, &p)
}
