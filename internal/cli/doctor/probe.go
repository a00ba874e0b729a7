package doctor

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// Service is what a Probe asks. *client.Client is one.
type Service interface {
	Health(context.Context) (types.Health, error)
	Put(ctx context.Context, id string, r types.Registration) (types.Sandbox, error)
	Exec(ctx context.Context, id string, e types.Exec) (types.Output, error)
	Delete(ctx context.Context, id string) error
}

// Probe lets the service run commands of a user of its own. What remains is the user's home, empty,
// and until their idle time has passed, the containers.
type Probe struct {
	Service Service
	Ask     AskDocker
	// Name is a name that the probe resolves; nothing connects to it.
	Name string
	// Upstreams are the resolvers, for a finding.
	Upstreams []string

	sandbox string // registered by the first check; empty for none
}

// probeUser is the user of a Probe's commands.
const probeUser = "doctor"

// denied is a name that no call of a Probe may have.
const denied = "denied-by-doctor.example"

// Checks returns the probe's checks, to be run in this order; call Close after them.
func (p *Probe) Checks() []Check {
	return []Check{
		{"a command", p.command},
		{"a denied name", p.deniedName},
		{"an allowed name", p.allowedName},
	}
}

// Close deletes the probe's sandbox.
func (p *Probe) Close(ctx context.Context) error {
	if p.sandbox == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return p.Service.Delete(ctx, p.sandbox)
}

// command runs the first command, and finds out which kernel it sees.
func (p *Probe) command(ctx context.Context) Finding {
	h, err := p.Service.Health(ctx)
	if err != nil {
		return skipped("the service does not answer")
	}
	id := "doctor-" + strings.ToLower(rand.Text()[:12])
	if _, err := p.Service.Put(ctx, id,
		types.Registration{UserID: probeUser,
			Permissions: types.Permissions{Network: true}}); err != nil {
		return wrong("look at the service's log", "cannot register a sandbox: %v", err)
	}
	p.sandbox = id
	out, err := p.Service.Exec(ctx, id, types.Exec{Command: "uname -r"})
	if err != nil {
		return wrong("look at the service's log", "cannot run a command: %v", err)
	}
	kernel := strings.TrimSpace(out.Stdout)
	if out.Failed {
		return wrong("look at the image: it needs a shell", "uname -r failed: %.200s",
			strings.TrimSpace(out.Stderr))
	}
	says := fmt.Sprintf("ran in %.0f ms under %s, kernel %.60s", out.DurationMs, h.Runtime, kernel)
	isGVisor := strings.Contains(kernel, "gvisor")
	e, err := p.Ask(ctx)
	switch {
	case err == nil && slices.Contains(e.GVisor, h.Runtime) && !isGVisor:
		return wrong("look at the runtime's program in Docker's daemon.json",
			"%s, which is not gVisor's", says)
	case !isGVisor:
		return warning("set docker.runtime to gVisor's runsc, unless this is meant",
			"%s: commands share the host's kernel", says)
	default:
		return ok("%s", says)
	}
}

// look resolves a name in a call that may only reach p.Name.
func (p *Probe) look(ctx context.Context, name string) (types.Output, *Finding) {
	if p.sandbox == "" {
		f := skipped("no command can be run")
		return types.Output{}, &f
	}
	out, err := p.Service.Exec(ctx, p.sandbox, types.Exec{
		Argv: []string{"getent", "ahostsv4", name}, Permissions: []string{"@network"},
		AllowedDomains: []string{p.Name},
	})
	if err != nil {
		f := wrong("the service's log says more", "cannot run a call with a name: %v", err)
		return out, &f
	}
	if out.ExitCode != nil && *out.ExitCode == 127 {
		f := skipped("the image has no getent")
		return out, &f
	}
	return out, nil
}

func (p *Probe) deniedName(ctx context.Context) Finding {
	out, why := p.look(ctx, denied)
	if why != nil {
		return *why
	}
	const remedy = "let no untrusted call run before this is understood; the service's log and `nft list ruleset` show what is in force"
	told := slices.ContainsFunc(out.Egress, func(r types.Refusal) bool {
		return r.Name == denied && r.Verdict == "denied"
	})
	switch {
	case !out.Failed:
		return wrong(remedy, "%s, which the call may not reach, resolves to %.100s", denied,
			firstWord(out.Stdout))
	case !told:
		return wrong(
			"let containers ask the service for names, where the host has a firewall: `ufw allow in on daycare-iso to any port 53`, and the same for daycare-loc",
			"%s fails, but the service did not deny it: the question does not reach its DNS filter",
			denied)
	case out.DurationMs > 5000 && !out.Cold:
		return warning("look whether something delays the packets of containers",
			"%s was denied after %.0f ms", denied, out.DurationMs)
	default:
		return ok("%s is denied at once", denied)
	}
}

func (p *Probe) allowedName(ctx context.Context) Finding {
	out, why := p.look(ctx, p.Name)
	if why != nil {
		return *why
	}
	if out.Failed {
		return warning(
			"look at the resolvers above; if the host has no internet, give another name with --probe-name, or ignore this: commands that need no names run",
			"%s does not resolve, by %s", p.Name, strings.Join(p.Upstreams, ", "))
	}
	return ok("%s resolves to %.100s", p.Name, firstWord(out.Stdout))
}

func firstWord(text string) string {
	if words := strings.Fields(text); len(words) > 0 {
		return words[0]
	}
	return "nothing"
}
