package sandbox

import (
	"context"
	"slices"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/cgroup"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
	"github.com/daycare-run/sandbox/pathmap"
)

// Scoped returns the service for callers who act for some users alone, or who use a token, whose
// quotas bound them. What belongs to others does not exist there: every call finds its sandbox in
// the registry, and this one has no others. Such a caller may also not hand out what is not its
// users' own: see mayHold.
func (s *Service) Scoped(users ids.Users, token quota.Token) *Service {
	if users.All() && token == (quota.Token{}) {
		return s
	}
	part := *s
	part.scope, part.token, part.registry = users, token, s.registry.Scoped(users, token)
	part.Files = s.Files.Scoped(part.registry, token)
	part.View = s.View.Scoped(part.registry, users)
	return &part
}

// account returns the account that a call for a user is counted against.
func (s *Service) account(user ids.User) quota.Account {
	return quota.Account{User: user.String(), Token: s.token}
}

// Ask counts a request for a sandbox, or with an empty id for none, until done is called: its user
// and the caller's token may make so many per second, and have so many at a time. The error is of
// class ResourceExhausted.
func (s *Service) Ask(id string) (done func(), err error) {
	account := quota.Account{Token: s.token}
	if box, err := s.Get(id); err == nil {
		account.User = box.User.String()
	}
	quotas := s.cfg().Quotas
	if err := quotas.Ask(account); err != nil {
		return nil, err
	}
	return quotas.Take(account, quota.Calls, 1)
}

// mayHold refuses permissions that a caller who acts for some users alone cannot give: the caller's
// control socket, and host directories outside the user's folder in usersDir.
func (s *Service) mayHold(box Sandbox) error {
	if s.scope.All() || !s.scope.Has(box.User) { // the registry refuses another user
		return nil
	}
	if box.Events {
		return errs.Denied(
			"permissions.events: only a caller who acts for everyone may let a sandbox open the caller's control socket")
	}
	outside := func(source pathmap.HostPath) bool {
		return !s.planner.Files().InUserDir(box.User.String(), source)
	}
	if i := slices.IndexFunc(box.Mounts, func(m registry.Mount) bool {
		return outside(m.Source)
	}); i >= 0 {
		return errs.Denied(
			"mounts[%d].source: only a caller who acts for everyone may mount what is not in the user's own folder",
			i)
	}
	if box.SkillsDir == "" {
		return nil
	}
	skills, err := pathmap.ParseHost(box.SkillsDir)
	if err != nil {
		return err
	}
	if outside(skills) {
		return errs.Denied(
			"skillsDir: only a caller who acts for everyone may take one that is not in the user's own folder")
	}
	return nil
}

// Containers lists the warm containers by name.
func (s *Service) Containers() []dockerexec.Summary {
	all := s.runner.Containers()
	if s.scope.All() {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(c dockerexec.Summary) bool {
		return !s.scope.HasName(c.User)
	})
}

// Pooled lists the containers that wait for users who are still to come, by name. They belong to
// nobody, so callers who act for some users alone get nil.
func (s *Service) Pooled() []dockerexec.Summary {
	if !s.scope.All() {
		return nil
	}
	return s.runner.Pooled()
}

// Usages returns what all containers take, by name, as of the last seconds. It is not scoped: the
// caller picks what may be shown.
func (s *Service) Usages(ctx context.Context) map[string]cgroup.Usage {
	return s.runner.Usages(ctx)
}

// Calls returns the calls of the last hour by minute, and all of them together.
func (s *Service) Calls() (minutes []calls.Minute, all calls.Minute) {
	hour := s.cfg().Hour
	if hour == nil {
		return nil, calls.Minute{}
	}
	_, scope := s.Events()
	return hour.Minutes(scope)
}

// Events returns the stream of events, and whose events a caller may know of: a nil scope is for
// all, including those of no user.
func (s *Service) Events() (stream *events.Stream, scope func(user string) bool) {
	if s.scope.All() {
		return s.cfg().Events, nil
	}
	return s.cfg().Events, func(user string) bool { return s.scope.HasName(user) }
}

// Decisions returns the log of what egress decided.
func (s *Service) Decisions() *decisions.Log {
	log := s.cfg().Decisions
	if s.scope.All() || log == nil {
		return log
	}
	return log.Scoped(func(user string) bool { return s.scope.HasName(user) })
}

// Named returns user if it is a valid id and the service's callers act for it, and "" otherwise.
func (s *Service) Named(user string) string {
	id, err := ids.ParseUser(user)
	if err != nil || !s.scope.Has(id) {
		return ""
	}
	return id.String()
}
