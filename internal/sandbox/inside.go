package sandbox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/warm"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// checkInside refuses a call inside a sandbox that is not persistent, or that asks for anything of
// its own: what runs there has all that the sandbox holds.
func (s *Service) checkInside(box Sandbox, asked Confinement) error {
	if s.persistent == nil || !box.Persistent {
		return errs.Conflict(
			"in: sandbox %q is not persistent: register it with \"persistent\": true, or leave in out",
			box.ID)
	}
	for _, tag := range asked.Permissions {
		switch kind, _ := policy.SplitTag(tag); kind {
		case policy.TagProcess:
			return errs.Invalid(
				"permissions: %.100q is for calls that have a container of their own: in the sandbox, what runs there is at localhost, and what runs elsewhere is not reached; leave in out",
				tag)
		case policy.TagSecret:
			return errs.Invalid(
				"permissions: %.100q is for calls that have a container of their own: nothing is put into what the sandbox's sends; leave in out",
				tag)
		}
	}
	return refuseGrants(asked,
		"a call in the sandbox has all that the sandbox holds, no more and no less: leave it out, or leave in out to have a container for this call's grants")
}

// refuseGrants refuses a call that asks for anything of its own, where it has no container for that.
func refuseGrants(asked Confinement, why string) error {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"permissions", len(asked.Permissions) > 0},
		{"allowedDomains", len(asked.AllowedDomains) > 0},
		{"packageManagers", len(asked.PackageManagers) > 0},
		{"denyRead", len(asked.DenyRead) > 0}, {"denyWrite", len(asked.DenyWrite) > 0},
		{"deniedDomains", len(asked.DeniedDomains) > 0}, {"home", asked.Home != ""},
	} {
		if f.given {
			return errs.Invalid("%s: %s", f.name, why)
		}
	}
	return nil
}

// inside returns the persistent sandbox in which a call is to run.
func (s *Service) inside(box Sandbox, asked Confinement) (*persistent.Sandbox, error) {
	if err := s.checkInside(box, asked); err != nil {
		return nil, err
	}
	return s.persistent.Of(box, s.token)
}

// runInside is run for a call in its sandbox.
func (s *Service) runInside(ctx context.Context, box Sandbox, r Request, out session.Output,
	watch *execWatch) (Result, error) {
	in, err := s.inside(box, r.Confinement)
	if err != nil {
		return Result{}, err
	}
	c, err := s.planner.Resolve(box, r.Confinement)
	if err != nil {
		return Result{}, err
	}
	command, err := s.command(c, r)
	if err != nil {
		return Result{}, err
	}
	leave, err := s.enter(ctx, box, r.OnlyIfRunning)
	if err != nil {
		return Result{}, err
	}
	defer leave()
	there := elsewhere{
		name: dockerexec.Spec{Persistent: in.ID()}.ContainerName(), run: in.Run,
		// What is planned now says which limits it has.
		plan: func() (plan.Plan, error) { return s.planner.PlanHeld(ctx, box, in.ID(), true) },
	}
	call := persistent.Call{Command: command.Command,
		Env: []map[string]string{terminalVariables(r), r.Env, r.Secrets}}
	ended, err := s.runThere(ctx, r, there, call, out, watch)
	hints.Inside(ended.Hints)
	return ended, err
}

// runBeside is run for a call in the container of a process, which has what the process has. The
// sandbox must have started the process, and must hold now what it held then.
func (s *Service) runBeside(ctx context.Context, box Sandbox, r Request, out session.Output,
	watch *execWatch) (Result, error) {
	if s.persistent == nil {
		return Result{}, errs.Conflict("process: this service runs no commands beside processes")
	}
	if r.InSandbox {
		return Result{}, errs.Invalid("process and in exclude each other: leave in out")
	}
	if err := refuseGrants(r.Confinement,
		"a call in a process's container has what the process has, no more and no less: leave it out"); err != nil {
		return Result{}, err
	}
	leave, err := s.enter(ctx, box, r.OnlyIfRunning)
	if err != nil {
		return Result{}, err
	}
	defer leave()
	p, err := s.processes.Running(box.User.String(), r.Process)
	if err != nil {
		return Result{}, err
	}
	if p.SandboxID != box.ID.String() {
		return Result{}, errs.Denied(
			"process: %q was started by sandbox %q, and only calls to that one may run in its container",
			r.Process, p.SandboxID)
	}
	c, planned, err := s.planBeside(ctx, box, p)
	if err != nil {
		return Result{}, err
	}
	held := planned.Held()
	if p.InSandbox {
		held = planned.Call.Held()
	}
	if held != p.Held {
		return Result{}, errs.Conflict(
			"process: the container of %q was made with what sandbox %q held then, which has changed, or is not known: start the process again",
			r.Process, box.ID)
	}
	r.Cwd = cmp.Or(r.Cwd, p.Cwd)
	if p.InSandbox {
		r.Env = merged(p.Env, r.Env)
		return s.runInside(ctx, box, r, out, watch)
	}
	command, err := s.command(c, r)
	if err != nil {
		return Result{}, err
	}
	command.Env = planned.Environment(terminalVariables(r), p.Env, r.Env, r.Secrets)
	account, reaches := s.account(box.User), planned.Spec.Egress.Profile != ""
	there := elsewhere{
		name: dockerexec.Spec{Process: dockerexec.Process{ID: p.ID}}.ContainerName(),
		run: func(ctx context.Context, c persistent.Call, out session.Output) (persistent.Ended, error) {
			return s.persistent.RunBeside(ctx, p.Instance.Container, reaches, account, c, out)
		},
		plan: func() (plan.Plan, error) { return planned, nil },
	}
	ended, err := s.runThere(ctx, r, there, persistent.Call{Command: command.Command}, out, watch)
	hints.Beside(ended.Hints)
	return ended, err
}

// planBeside plans the container of a process as it would be made now.
func (s *Service) planBeside(ctx context.Context, box Sandbox,
	p process.Record) (*plan.Call, plan.Plan, error) {
	c, err := s.planner.Resolve(box, p.Confinement())
	if err != nil {
		return nil, plan.Plan{}, err
	}
	c.Detached = true
	if p.InSandbox {
		planned, err := s.planner.PlanHeld(ctx, box, "", true)
		return c, planned, err
	}
	planned, err := s.plan(ctx, c, true)
	return c, planned, err
}

// merged returns all variables; the later ones win.
func merged(all ...map[string]string) map[string]string {
	into := map[string]string{}
	for _, variables := range all {
		maps.Copy(into, variables)
	}
	return into
}

// elsewhere is a container that is not one for a call's grants.
type elsewhere struct {
	name string
	run  func(context.Context, persistent.Call, session.Output) (persistent.Ended, error)
	// plan returns what the container is made from.
	plan func() (plan.Plan, error)
}

// runThere runs a call's command there.
func (s *Service) runThere(ctx context.Context, r Request, there elsewhere,
	call persistent.Call, out session.Output, watch *execWatch) (Result, error) {
	var refused *refusals
	call.Started = func(reaches bool) {
		if reaches {
			refused = s.refusals(there.name, r.Refused)
		}
		watch.running()
		if r.Started != nil {
			r.Started()
		}
		refused.start(ctx)
	}
	defer func() { refused.end() }()
	watch.decided(there.name)
	out, unheard := s.heard(watch, out)
	defer unheard()
	result, err := there.run(ctx, call, out)
	ran := warm.Result{Result: result.Result, Exhausted: result.Exhausted, Cold: result.Cold,
		Thawed: result.Thawed, InContainer: err == nil, Waited: result.Waited}
	watch.ran(ran)
	if err != nil {
		return Result{}, err
	}
	if ran.CwdFault != "" {
		return Result{}, errs.Invalid("cannot run in cwd %s", ran.CwdFault)
	}
	ended := Result{Result: ran, Cwd: call.Cwd, Duration: time.Since(watch.begun)}
	if result.Again != "" {
		ended.Hints = append(ended.Hints, hints.Restarted(result.Again))
	}
	ended.Refused, ended.MoreRefused = refused.end()
	if ended.Failed() {
		if p, err := there.plan(); err == nil {
			s.explain(ctx, &ended, watch, p, refused != nil)
		}
	}
	if ended.Exhausted != nil {
		ended.Hints = append(ended.Hints, ExhaustedHint(*ended.Exhausted))
	}
	return ended, nil
}

// runsElsewhere reports whether a server of the user may run in another container: a process, or
// whatever runs in the sandbox itself. The reason says why a call does not find it that reaches
// processes; it is empty for one that reaches none.
func (s *Service) runsElsewhere(box Sandbox, reaches []dockerexec.Reach) (reason string, is bool) {
	for _, r := range s.processes.List(box.User.String()) {
		if r.Status != process.Running {
			continue
		}
		is = true
		name := cmp.Or(r.Name, r.ID)
		switch {
		case !r.IsNamed(reaches):
		case r.InSandbox:
			reason = cmp.Or(reason, fmt.Sprintf(
				"process %q runs inside its sandbox, and only a call in that sandbox reaches its ports", name))
		case r.Paused:
			reason = fmt.Sprintf("process %q is paused with its sandbox", name)
		case s.offers.Silent(r.ID):
			reason = fmt.Sprintf(
				"process %q does not tell its ports: if an earlier version has started it, start it again", name)
		default:
			reason = "the processes that this call reaches do not listen there"
		}
	}
	if reason == "" && len(reaches) > 0 {
		reason = "no process that this call reaches runs"
	}
	return reason, is || len(reaches) > 0 ||
		box.Persistent && s.persistent != nil && s.persistent.Runs(box)
}

// explain adds to the result of a failed command what its output and its limits tell.
func (s *Service) explain(ctx context.Context, ended *Result, watch *execWatch, p plan.Plan,
	network bool) {
	text, _ := watch.last.text()
	if ended.Exhausted == nil && hints.NoProcess(text) {
		ended.Exhausted = p.Spec.Platform.Limits.OutOfProcesses()
	}
	ended.Hints = append(ended.Hints,
		s.withLimits(ctx, p, hints.Of(text, network, ended.TimedOut))...)
}
