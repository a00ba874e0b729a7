package decisions

import (
	"strings"
	"time"
)

// Filter selects decisions. A field that is zero matches all.
type Filter struct {
	User, Container string
	Verdict         Verdict
	Via             Via
	// Name matches itself and all names below it: example.org matches www.example.org, and not
	// badexample.org. It is in lower case and without a trailing dot.
	Name string
	// After is a Seq: it matches what was added or repeated after that one. Numbers start again
	// with each Log.
	After uint64
	// Since matches what was decided at that time or later.
	Since time.Time

	scope func(user string) bool // the log's
}

func (f *Filter) matches(d *Decision) bool {
	return d.Seq > f.After &&
		(f.scope == nil || d.User != "" && f.scope(d.User)) &&
		(f.User == "" || f.User == d.User) &&
		(f.Container == "" || f.Container == d.Container) &&
		(f.Verdict == "" || f.Verdict == d.Verdict) &&
		(f.Via == "" || f.Via == d.Via) &&
		(f.Name == "" || within(d.Name, f.Name)) &&
		(f.Since.IsZero() || !d.Time.Before(f.Since))
}

// within reports whether a name is zone or below it.
func within(name, zone string) bool {
	above, ok := strings.CutSuffix(name, zone)
	return ok && (above == "" || above[len(above)-1] == '.')
}
