package sandbox

import (
	"regexp"
	"strings"

	"github.com/daycare-run/sandbox/internal/errs"
)

// UserID names a tenant. It is made by ParseUserID alone, and is safe as a file name, a container
// name and a label.
type UserID struct{ id string }

// ID names a registered sandbox. It is made by ParseID alone, and is safe as a file name.
type ID struct{ id string }

func (u UserID) String() string { return u.id }
func (i ID) String() string     { return i.id }

var (
	userPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)
	idPattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,127}$`)
)

// ParseUserID accepts 1 to 63 lower-case letters, digits, dots, dashes and underscores that begin
// with a letter or digit. There is no upper case, so that no two users differ in case alone.
func ParseUserID(s string) (UserID, error) {
	if err := checkName("userId", s, userPattern, 63); err != nil {
		return UserID{}, err
	}
	return UserID{s}, nil
}

// ParseID accepts the same for a sandbox, up to 128 characters.
func ParseID(s string) (ID, error) {
	if err := checkName("sandbox id", s, idPattern, 128); err != nil {
		return ID{}, err
	}
	return ID{s}, nil
}

func checkName(what, s string, pattern *regexp.Regexp, longest int) error {
	switch {
	case s == "":
		return errs.Invalid("%s is empty", what)
	case len(s) > longest:
		return errs.Invalid("%s %.32q… has %d characters, more than %d", what, s, len(s), longest)
	case s != strings.ToLower(s) && pattern.MatchString(strings.ToLower(s)):
		return errs.Invalid("%s %q has upper-case letters; did you mean %q?", what, s, strings.ToLower(s))
	case strings.Contains(s, "..") || !pattern.MatchString(s):
		return errs.Invalid("%s %q may only have lower-case letters, digits, and single . _ - after the first character", what, s)
	}
	return nil
}
