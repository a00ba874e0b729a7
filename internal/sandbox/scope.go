package sandbox

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/pathmap"
)

// Users are those for whom a caller acts. The zero value is nobody.
type Users struct {
	all bool
	ids map[UserID]bool
}

// Everyone is all users, also those that come later.
func Everyone() Users { return Users{all: true} }

// OnlyUsers is these users and no others; none is nobody.
func OnlyUsers(ids ...UserID) Users {
	users := Users{ids: map[UserID]bool{}}
	for _, id := range ids {
		users.ids[id] = true
	}
	return users
}

// All reports whether there is no user for whom the caller does not act.
func (u Users) All() bool { return u.all }

// Has reports whether a user is one of them.
func (u Users) Has(id UserID) bool { return u.all || u.ids[id] }

// IDs are they by name, where they are not all.
func (u Users) IDs() []string {
	names := []string{}
	for id := range maps.Keys(u.ids) {
		names = append(names, id.id)
	}
	slices.Sort(names)
	return names
}

func (u Users) String() string {
	if u.all {
		return "everyone"
	}
	names := u.IDs()
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}

// Scoped returns the service for callers who act for some users alone, or by a token, which is what they are
// bounded as. What is of others does not exist there: every call finds its sandbox in the registry, and this one
// has no others. Such a caller may also not hand out what is not its users' own: see mayHold.
func (s *Service) Scoped(users Users, token quota.Token) *Service {
	if users.all && token == (quota.Token{}) {
		return s
	}
	part := *s
	part.scope, part.token, part.registry = users, token, s.registry.Scoped(users, token)
	return &part
}

// account is on whose behalf a call for a user takes what is bounded.
func (s *Service) account(user UserID) quota.Account {
	return quota.Account{User: user.id, Token: s.token}
}

// Ask counts a request for a sandbox, or with an empty id for none, until done is called: its user and the caller's
// token may make so many in a second, and have so many at a time. The error is of class ResourceExhausted.
func (s *Service) Ask(id string) (done func(), err error) {
	account := quota.Account{Token: s.token}
	if box, err := s.Get(id); err == nil {
		account.User = box.User.id
	}
	quotas := s.cfg().Quotas
	if err := quotas.Ask(account); err != nil {
		return nil, err
	}
	return quotas.Take(account, quota.Calls, 1)
}

// mayHold refuses permissions that a caller who acts for some users alone cannot give: the caller's control
// socket, and directories of the host outside of the user's folder in usersDir.
func (s *Service) mayHold(box Sandbox) error {
	if s.scope.All() || !s.scope.Has(box.User) { // or the registry says so
		return nil
	}
	if box.Events {
		return errs.Denied("permissions.events: only a caller who acts for everyone may let a sandbox open the caller's control socket")
	}
	outside := func(source pathmap.HostPath) bool { return !s.resolver.rootfs.InUserDir(box.User.id, source) }
	if i := slices.IndexFunc(box.Mounts, func(m Mount) bool { return outside(m.Source) }); i >= 0 {
		return errs.Denied("mounts[%d].source: only a caller who acts for everyone may mount what is not in the user's own folder", i)
	}
	if box.SkillsDir == "" {
		return nil
	}
	skills, err := pathmap.ParseHost(box.SkillsDir)
	if err != nil {
		return err
	}
	if outside(skills) {
		return errs.Denied("skillsDir: only a caller who acts for everyone may take one that is not in the user's own folder")
	}
	return nil
}

// Containers lists the warm containers by name.
func (s *Service) Containers() []dockerexec.Container {
	all := s.executor.Containers()
	if s.scope.All() {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(c dockerexec.Container) bool { return !s.scope.Has(UserID{c.User}) })
}

// Usages are what the containers take, by name, as of the last seconds. It is for who may know of all of them: the caller picks.
func (s *Service) Usages(ctx context.Context) map[string]dockerexec.Usage {
	return s.executor.Usages(ctx)
}

// Calls are those of the last hour, and all of it together.
func (s *Service) Calls() (minutes []calls.Minute, all calls.Minute) {
	hour := s.cfg().Hour
	if hour == nil {
		return nil, calls.Minute{}
	}
	_, scope := s.Events()
	return hour.Minutes(scope)
}

// Events is what happens, and whose events a caller may know of: nil is everyone's, and nobody's.
func (s *Service) Events() (stream *events.Stream, scope func(user string) bool) {
	if s.scope.All() {
		return s.cfg().Events, nil
	}
	return s.cfg().Events, func(user string) bool { return s.scope.Has(UserID{user}) }
}

// Decisions is the log of what egress decided.
func (s *Service) Decisions() *decisions.Log {
	log := s.cfg().Decisions
	if s.scope.All() || log == nil {
		return log
	}
	return log.Scoped(func(user string) bool { return s.scope.Has(UserID{user}) })
}

// Named is a user's id if it can be one and the service's callers act for it; else empty.
func (s *Service) Named(user string) string {
	id, err := ParseUserID(user)
	if err != nil || !s.scope.Has(id) {
		return ""
	}
	return id.id
}
