// Package doctor looks at a host and at the service on it, and says of each thing whether it is as it has
// to be, and if not, what to do. It only looks: what it asks, it is given.
//
// doctor.go runs checks; docker.go has those of Docker, network.go those of what calls reach, host.go
// those of files, disk and clock, kernel.go those of the kernel's limits, cluster.go those of several hosts, tcp.go those of the way in by TCP, service.go that of the service, and
// leftovers.go what services have left that are gone, and probe.go has it run a command.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/daycare-run/sandbox/api/types"
)

// The levels of findings. A host with warnings works; one with a fault does not, or not as it is meant to.
const (
	OK      = "ok"
	Warning = "warning"
	Fault   = "fault"
	Skipped = "skipped" // it cannot be known, and Found says why
)

// Finding is what one check has found: in Found how it is, in a line, and in Remedy what to do about a warning or a fault.
type Finding = types.DoctorFinding

// Check is one thing to look at.
type Check struct {
	// Name is unique, and short enough for a column.
	Name string
	// Look finds out. Its Finding needs no name. It is bounded by its context alone.
	Look func(context.Context) Finding
}

// Report is all that was found, in the order of the checks.
type Report struct {
	OK       int       `json:"ok"`
	Warnings int       `json:"warnings"`
	Faults   int       `json:"faults"`
	Skipped  int       `json:"skipped"`
	Findings []Finding `json:"findings"`
}

// lookLimit bounds one check: making a container takes the longest.
const lookLimit = time.Minute

// Run makes the checks one after the other, and tells of each finding when it is known.
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

// Summary is the report in a line.
func (r Report) Summary() string {
	return fmt.Sprintf("%d checks: %d ok, %s, %s, %d skipped", len(r.Findings), r.OK, count(r.Warnings, "warning"), count(r.Faults, "fault"), r.Skipped)
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

// accepted makes a fault a warning where the operator has accepted what it is about.
func accepted(weaker bool, f Finding) Finding {
	if weaker && f.Level == Fault {
		f.Level = Warning
		f.Found += " (accepted by docker.enableWeakerNestedSandbox)"
	}
	return f
}

// Settings says where the settings come from, and what is wrong with them.
func Settings(from string, err error) Check {
	return Check{"settings", func(context.Context) Finding {
		if err != nil {
			return wrong("correct it; docs/settings.md has all keys, and `sandboxd check` looks at them alone", "%v", err)
		}
		return ok("%s", from)
	}}
}
