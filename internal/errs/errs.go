// Package errs makes errors for callers. An error's text is all that a caller reads; the class of
// containerd/errdefs behind it decides the status of the answer.
package errs

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// ErrNoSpace is the class of errors about a full disk, an exhausted quota, and a file that would
// grow too large. What was stored before is still there.
var ErrNoSpace = errors.New("the disk or quota is full")

// Invalid returns an error about a fault in the request.
func Invalid(format string, args ...any) error {
	return newFault(errdefs.ErrInvalidArgument, format, args)
}

// Denied returns an error about something that the caller may not do.
func Denied(format string, args ...any) error {
	return newFault(errdefs.ErrPermissionDenied, format, args)
}

// Unauthenticated returns an error about an unknown caller.
func Unauthenticated(format string, args ...any) error {
	return newFault(errdefs.ErrUnauthenticated, format, args)
}

// NotFound returns an error about something that does not exist.
func NotFound(format string, args ...any) error {
	return newFault(errdefs.ErrNotFound, format, args)
}

// Conflict returns an error about something that stands in the way.
func Conflict(format string, args ...any) error {
	return newFault(errdefs.ErrConflict, format, args)
}

// Busy returns an error about something that is used up for now.
func Busy(format string, args ...any) error {
	return newFault(errdefs.ErrResourceExhausted, format, args)
}

// TooLarge returns an error about something that exceeds its size limit.
func TooLarge(format string, args ...any) error {
	return newFault(errdefs.ErrOutOfRange, format, args)
}

// classed is an error whose text does not name its class.
type classed struct {
	text  string
	class error
}

func newFault(class error, format string, args []any) error {
	return classed{fmt.Sprintf(format, args...), class}
}

func (c classed) Error() string { return c.text }
func (c classed) Unwrap() error { return c.class }
