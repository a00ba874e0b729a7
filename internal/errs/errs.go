// Package errs makes errors for callers: a text alone, with a class of containerd/errdefs behind it
// that decides the answer's status.
package errs

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// ErrNoSpace is the class of errors about a full disk, a quota that is used up and a file that would
// grow too large. What was there before is still there.
var ErrNoSpace = errors.New("the disk or quota is full")

// Invalid is a fault of the request's.
func Invalid(format string, args ...any) error {
	return newFault(errdefs.ErrInvalidArgument, format, args)
}

// Denied is something that the caller may not do.
func Denied(format string, args ...any) error {
	return newFault(errdefs.ErrPermissionDenied, format, args)
}

// Unauthenticated is a caller whom nobody knows.
func Unauthenticated(format string, args ...any) error {
	return newFault(errdefs.ErrUnauthenticated, format, args)
}

// NotFound is something that is not there.
func NotFound(format string, args ...any) error { return newFault(errdefs.ErrNotFound, format, args) }

// Conflict is something that stands in the way.
func Conflict(format string, args ...any) error { return newFault(errdefs.ErrConflict, format, args) }

// Busy is something of which there is no more for now.
func Busy(format string, args ...any) error {
	return newFault(errdefs.ErrResourceExhausted, format, args)
}

// TooLarge is something that is larger than it may be.
func TooLarge(format string, args ...any) error { return newFault(errdefs.ErrOutOfRange, format, args) }

// classed has a class that its text does not name.
type classed struct {
	text  string
	class error
}

func newFault(class error, format string, args []any) error {
	return classed{fmt.Sprintf(format, args...), class}
}

func (c classed) Error() string { return c.text }
func (c classed) Unwrap() error { return c.class }
