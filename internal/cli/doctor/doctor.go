// Package doctor checks a host and the service on it. For each check it reports whether all is
// well, and if not, what to do. It changes nothing, and gets the functions that ask Docker, the
// kernel and the service from its caller.
//
// doctor.go runs the checks. docker.go checks Docker, network.go what calls can reach, host.go
// files, disk and clock, kernel.go the kernel's limits, cluster.go several hosts, tcp.go access by
// TCP, service.go the service, leftovers.go what services that are gone have left behind, and
// probe.go runs a command.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// The levels of findings. A host with warnings works; a host with a fault does not work, or not as
// it is meant to.
const (
	OK      = "ok"
	Warning = "warning"
	Fault   = "fault"
	Skipped = "skipped" // it cannot be known; Found says why
)

// Finding is the result of one check: Found says in a line how things are, Remedy what to do about
// a warning or a fault.
type Finding = types.DoctorFinding

// Check is one thing to check.
type Check struct {
	// Name is unique, and short enough for a column.
	Name string
	// Look does the check. Its Finding needs no Check name. Only its context bounds it. It is a
	// function, because a check is one, with a name.
	Look func(context.Context) Finding
}

// Report has all findings, in the order of the checks.
type Report struct {
	OK       int       `json:"ok"`
	Warnings int       `json:"warnings"`
	Faults   int       `json:"faults"`
	Skipped  int       `json:"skipped"`
	Findings []Finding `json:"findings"`
}

// lookLimit bounds one check; the longest one makes a container.
const lookLimit = time.Minute

// Run runs the checks one after the other, and calls each with every finding as soon as it is
// known.
func Run(ctx context.Context, checks []Check, each func(Finding)) Report {
	r := Report{Findings: []Finding{}}
	for _, check := range checks {
		looking, cancel := context.WithTimeout(ctx, lookLimit)
		found := check.Look(looking)
		cancel()
		found.Check = check.Name
		r.Findings = append(r.Findings, found)
		switch found.Level {
		case OK:
			r.OK++
		case Warning:
			r.Warnings++
		case Skipped:
			r.Skipped++
		default:
			r.Faults++
		}
		each(found)
	}
	return r
}

// Summary returns the report in a line.
func (r Report) Summary() string {
	return fmt.Sprintf("%d checks: %d ok, %s, %s, %d skipped", len(r.Findings), r.OK,
		count(r.Warnings, "warning"), count(r.Faults, "fault"), r.Skipped)
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func ok(format string, args ...any) Finding {
	return Finding{Level: OK, Found: fmt.Sprintf(format, args...)}
}

func skipped(format string, args ...any) Finding {
	return Finding{Level: Skipped, Found: fmt.Sprintf(format, args...)}
}

func warning(remedy, format string, args ...any) Finding {
	return Finding{Level: Warning, Found: fmt.Sprintf(format, args...), Remedy: remedy}
}

func wrong(remedy, format string, args ...any) Finding {
	return Finding{Level: Fault, Found: fmt.Sprintf(format, args...), Remedy: remedy}
}

// accepted turns a fault into a warning if the operator has accepted a weaker sandbox.
func accepted(weaker bool, f Finding) Finding {
	if weaker && f.Level == Fault {
		f.Level = Warning
		f.Found += " (accepted by docker.enableWeakerNestedSandbox)"
	}
	return f
}

// Settings returns the check that says where the settings come from and what is wrong with them.
func Settings(from string, err error) Check {
	return Check{"settings", func(context.Context) Finding {
		if err != nil {
			return wrong(
				"correct it; docs/settings.md has all keys, and `sandboxd check` looks at them alone",
				"%v", err)
		}
		return ok("%s", from)
	}}
}
