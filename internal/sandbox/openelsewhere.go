package sandbox

import (
	"context"
	"slices"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/hints"
	"github.com/daycare-run/sandbox/internal/hostfs"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
)

// openBefore is how long before a call it may have been looked up that a process had a file open,
// maxOpenElsewhere of how many files one result tells, and maxOpenSeen at how many it looks.
const (
	openBefore       = 10 * time.Second
	maxOpenElsewhere = 4
	maxOpenSeen      = 64
)

// mayConflict reports whether a call may write to a file that a process of the user has locked in
// another kernel. If so, what processes have open is looked up meanwhile.
func (s *Service) mayConflict(p plan.Plan) bool {
	may := p.Spec.Platform.GVisor && slices.ContainsFunc(p.Spec.Mounts,
		func(m dockerexec.Mount) bool { return !m.ReadOnly })
	if may {
		s.processes.OpenFiles(p.Spec.User, p.Call.ID.String(), time.Now())
	}
	return may
}

// openElsewhere returns hints about files that the call may write to, that have changed since it has
// begun and that a process of the user has open. Who has changed them nobody knows.
func (s *Service) openElsewhere(ctx context.Context, p plan.Plan,
	begun time.Time) (list []hints.Hint) {
	var root *hostfs.Root
	id := p.Call.ID.String()
	open := s.processes.OpenFiles(p.Spec.User, id, begun.Add(-openBefore))
	for _, file := range open[:min(len(open), maxOpenSeen)] {
		inside, err := policy.Home.ResolveName(file.Name)
		if err != nil {
			continue
		}
		at, rest, err := p.Paths.Locate(inside)
		if err != nil || at.Container != policy.Home {
			continue // something else is mounted there
		}
		host := at.Host.String() + "/" + rest
		if !slices.Contains(p.Spec.WritablePlaces(host, ""), inside.String()) {
			continue
		}
		if root == nil {
			if root, err = s.planner.Files().OpenRoot(ctx, p.Spec.User, at); err != nil {
				return nil
			}
			defer root.Close()
		}
		if !hasChanged(root, rest, begun) || !file.Say(id) {
			continue
		}
		by := file.Process
		if file.Sandbox != id {
			by = "" // it lets no call of this sandbox run beside it
		}
		if list = append(list, hints.OpenElsewhere(inside.String(), by)); len(list) ==
			maxOpenElsewhere {
			break
		}
	}
	return list
}

// hasChanged reports whether a file, or SQLite's log of it, was modified since a time.
func hasChanged(root *hostfs.Root, name string, since time.Time) bool {
	for _, suffix := range []string{"", "-wal", "-journal"} {
		info, err := root.Stat(name + suffix)
		if err == nil && info.Type == hostfs.Regular && !info.ModTime.Before(since) &&
			!info.ModTime.After(time.Now()) {
			return true
		}
	}
	return false
}
