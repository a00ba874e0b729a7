package sandbox

import (
	"context"

	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/rootfs"
)

// Explanation is the view that a call would get.
type Explanation struct {
	User       string
	WorkingDir string
	Runtime    string
	// Places are sorted by path; the longest that holds a path decides about it.
	Places []policy.Region
	// Home is where HOME points, and HomeWhy says why.
	Home, HomeWhy string
	// Network and Events say what the call reaches beyond files.
	Network, Events string
	// Processes are the tags of processes whose ports it reaches.
	Processes []string
	// Secrets are its credentials.
	Secrets []SecretUse
	// Fingerprint identifies the container; Warm says that it is running.
	Fingerprint string
	Warm        bool
}

// SecretUse is what becomes of a credential of a call.
type SecretUse struct {
	Name string
	// Hosts are those whose traffic the service reads, to put the credential in.
	Hosts []string
	// Env is the variable that has the placeholder; empty for none.
	Env string
	// Unused says why the credential is not put in; empty if it is.
	Unused string
}

// Explain says what a call would get, in its sandbox or a container for its grants, and why, before
// anything runs; nothing is made for it.
func (s *Service) Explain(ctx context.Context, id string, inSandbox bool,
	asked Confinement) (Explanation, error) {
	c, err := s.call(id, asked)
	if err != nil {
		return Explanation{}, err
	}
	if inSandbox {
		return s.explainInside(ctx, c)
	}
	p, err := s.plan(ctx, c, true)
	if err != nil {
		return Explanation{}, err
	}
	e := explanation(p)
	for _, container := range s.runner.Containers() {
		e.Warm = e.Warm || (string(container.Fingerprint) == e.Fingerprint &&
			container.State != "starting")
	}
	return e, nil
}

// explainInside is Explain for a call in its sandbox.
func (s *Service) explainInside(ctx context.Context, c *plan.Call) (Explanation, error) {
	in, err := s.inside(c.Sandbox, c.Confinement)
	if err != nil {
		return Explanation{}, err
	}
	p, err := s.planner.PlanHeld(ctx, c.Sandbox, in.ID(), true)
	if err != nil {
		return Explanation{}, err
	}
	e := explanation(p)
	e.Warm = in.Warm()
	return e, nil
}

func explanation(p plan.Plan) Explanation {
	e := Explanation{
		User: p.User.String(), WorkingDir: p.WorkingDir.String(), Runtime: p.Spec.Runtime(),
		Home: p.Home, HomeWhy: p.HomeWhy, Network: plan.NetworkText(p.Spec.Egress), Events: "none",
		Fingerprint: string(p.Spec.Fingerprint()), Places: p.Decision.View.Regions(),
	}
	if p.Decision.Events {
		e.Events = "the caller's control socket at " + rootfs.EventsPath
	}
	for _, process := range p.Decision.Processes {
		e.Processes = append(e.Processes, policy.TagProcess+process.Name)
	}
	for _, c := range p.Credentials {
		use := SecretUse{Name: c.Name, Unused: p.SecretsUnused()}
		if use.Unused == "" {
			use.Hosts, use.Env = c.Hosts, c.Env
		}
		e.Secrets = append(e.Secrets, use)
	}
	return e
}
