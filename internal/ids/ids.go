// Package ids has the names of users and sandboxes, and the set of users for whom a caller acts.
package ids

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
)

// User names a tenant. It is made by ParseUser, and is safe as a file name, a container name and a
// label.
type User struct{ id string }

// Sandbox names a registered sandbox. It is made by ParseSandbox alone, and is safe as a file name.
type Sandbox struct{ id string }

func (u User) String() string    { return u.id }
func (i Sandbox) String() string { return i.id }

var (
	userPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)
	idPattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,127}$`)
)

// ParseUser accepts 1 to 63 lower-case letters, digits, dots, dashes and underscores that begin
// with a letter or digit. There is no upper case, so that no two users differ in case alone.
func ParseUser(s string) (User, error) {
	if err := checkName("userId", s, userPattern, 63); err != nil {
		return User{}, err
	}
	return User{s}, nil
}

// Pooled returns a pool container's first user. dockerexec.PoolUser makes such names, which no real
// user can have.
func Pooled(name string) User { return User{name} }

// ParseSandbox accepts the same names as ParseUser, but up to 128 characters.
func ParseSandbox(s string) (Sandbox, error) {
	if err := checkName("sandbox id", s, idPattern, 128); err != nil {
		return Sandbox{}, err
	}
	return Sandbox{s}, nil
}

func checkName(what, s string, pattern *regexp.Regexp, longest int) error {
	switch {
	case s == "":
		return errs.Invalid("%s is empty", what)
	case len(s) > longest:
		return errs.Invalid("%s %.32q… has %d characters, more than %d", what, s, len(s), longest)
	case s != strings.ToLower(s) && pattern.MatchString(strings.ToLower(s)):
		return errs.Invalid("%s %q has upper-case letters; did you mean %q?", what, s,
			strings.ToLower(s))
	case strings.Contains(s, "..") || !pattern.MatchString(s):
		return errs.Invalid(
			"%s %q may only have lower-case letters, digits, and single . _ - after the first character",
			what, s)
	}
	return nil
}

// Users is the set of users for whom a caller acts. The zero value is empty.
type Users struct {
	all bool
	ids map[User]bool
}

// Everyone returns the set of all users, including those that come later.
func Everyone() Users { return Users{all: true} }

// OnlyUsers returns the set of these users and no others; it may be empty.
func OnlyUsers(ids ...User) Users {
	users := Users{ids: map[User]bool{}}
	for _, id := range ids {
		users.ids[id] = true
	}
	return users
}

// All reports whether the caller acts for every user.
func (u Users) All() bool { return u.all }

// Has reports whether the set has a user.
func (u Users) Has(id User) bool { return u.all || u.ids[id] }

// HasName is Has for a string that may not be a user's name, such as a label.
func (u Users) HasName(name string) bool { return u.Has(User{name}) }

// Equal reports whether both are the same set.
func (u Users) Equal(other Users) bool { return u.all == other.all && maps.Equal(u.ids, other.ids) }

// IDs returns the users, sorted by name. It is empty if the set is everyone.
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
