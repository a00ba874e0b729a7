package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
)

// classes is the one place where an error's class becomes a kind and a status. An error without a
// class is Docker's fault.
var classes = []struct {
	is     func(error) bool
	kind   types.Kind
	status int
}{
	{isTooLarge, types.TooLarge, http.StatusRequestEntityTooLarge},
	{cerrdefs.IsOutOfRange, types.TooLarge, http.StatusRequestEntityTooLarge},
	{isFull, types.TooLarge, http.StatusInsufficientStorage},
	{isBeyond, types.Invalid, http.StatusRequestedRangeNotSatisfiable},
	{isChanged, types.Conflict, http.StatusPreconditionFailed},
	{isMethod, types.Invalid, http.StatusMethodNotAllowed},
	{cerrdefs.IsInvalidArgument, types.Invalid, http.StatusBadRequest},
	{cerrdefs.IsUnauthorized, types.Denied, http.StatusUnauthorized},
	{cerrdefs.IsPermissionDenied, types.Denied, http.StatusForbidden},
	{cerrdefs.IsNotFound, types.NotFound, http.StatusNotFound},
	{cerrdefs.IsConflict, types.Conflict, http.StatusConflict},
	{cerrdefs.IsResourceExhausted, types.Busy, http.StatusTooManyRequests},
	{cerrdefs.IsUnavailable, types.Unavailable, http.StatusServiceUnavailable},
	{isGone, types.Unavailable, http.StatusServiceUnavailable},
	{func(error) bool { return true }, types.Engine, http.StatusBadGateway},
}

func isTooLarge(err error) bool {
	_, is := errors.AsType[*http.MaxBytesError](err)
	return is
}

func isFull(err error) bool { return errors.Is(err, errs.ErrNoSpace) }

// Classes that only HTTP has: a download's Range that is not in the file, a download's condition
// that the file does not meet, and a method that the path does not have.
var (
	errBeyond  = errors.New("range not satisfiable")
	errChanged = errors.New("precondition failed")
	errMethod  = errors.New("method not allowed")
)

// isGone reports whether the caller has hung up.
func isGone(err error) bool { return errors.Is(err, context.Canceled) }

func isBeyond(err error) bool  { return errors.Is(err, errBeyond) }
func isChanged(err error) bool { return errors.Is(err, errChanged) }
func isMethod(err error) bool  { return errors.Is(err, errMethod) }

func classify(err error) (types.Error, int) {
	for _, class := range classes {
		if class.is(err) {
			// A message may quote what somebody sent, but JSON is UTF-8 only.
			return types.Error{Kind: class.kind, Limit: limit(err),
				Message: strings.ToValidUTF8(message(err), "\uFFFD")}, class.status
		}
	}
	panic("the last class takes every error")
}

// limit returns the quota that an error is about; "" for none.
func limit(err error) string {
	if full, is := errors.AsType[*quota.Exceeded](err); is {
		return full.Resource.String()
	}
	return ""
}

// message returns the error's text without the class name at its end, because kind and status
// already say that. The name of a permission error stays, because it may be the kernel's reason.
func message(err error) string {
	text := err.Error()
	for _, class := range []error{
		cerrdefs.ErrInvalidArgument, cerrdefs.ErrNotFound, cerrdefs.ErrConflict,
		cerrdefs.ErrResourceExhausted, cerrdefs.ErrUnavailable, cerrdefs.ErrFailedPrecondition,
		cerrdefs.ErrInternal, errBeyond, errChanged, errMethod,
	} {
		if short, ok := strings.CutSuffix(text, ": "+class.Error()); ok && errors.Is(err, class) {
			return short
		}
	}
	return text
}
