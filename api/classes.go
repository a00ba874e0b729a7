package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/apitypes"
	"github.com/daycare-run/sandbox/sandbox"
)

// classes is the one place where an error's class becomes a kind and a status. What has no class is
// the engine's fault.
var classes = []struct {
	is     func(error) bool
	kind   apitypes.Kind
	status int
}{
	{isTooLarge, apitypes.TooLarge, http.StatusRequestEntityTooLarge},
	{isFull, apitypes.TooLarge, http.StatusInsufficientStorage},
	{isBeyond, apitypes.Invalid, http.StatusRequestedRangeNotSatisfiable},
	{isChanged, apitypes.Conflict, http.StatusPreconditionFailed},
	{isMethod, apitypes.Invalid, http.StatusMethodNotAllowed},
	{cerrdefs.IsInvalidArgument, apitypes.Invalid, http.StatusBadRequest},
	{cerrdefs.IsUnauthorized, apitypes.Denied, http.StatusUnauthorized},
	{cerrdefs.IsPermissionDenied, apitypes.Denied, http.StatusForbidden},
	{cerrdefs.IsNotFound, apitypes.NotFound, http.StatusNotFound},
	{cerrdefs.IsConflict, apitypes.Conflict, http.StatusConflict},
	{cerrdefs.IsResourceExhausted, apitypes.Busy, http.StatusTooManyRequests},
	{cerrdefs.IsUnavailable, apitypes.Unavailable, http.StatusServiceUnavailable},
	{isGone, apitypes.Unavailable, http.StatusServiceUnavailable},
	{func(error) bool { return true }, apitypes.Engine, http.StatusBadGateway},
}

func isTooLarge(err error) bool {
	var tooLarge *http.MaxBytesError
	return errors.As(err, &tooLarge)
}

func isFull(err error) bool { return errors.Is(err, sandbox.ErrNoSpace) }

// The classes that HTTP has for a download: a Range that is not in the file, and a condition that the
// file does not meet; and that for a path that has other methods.
var (
	errBeyond  = errors.New("range not satisfiable")
	errChanged = errors.New("precondition failed")
	errMethod  = errors.New("method not allowed")
)

// isGone says that the caller has hung up, who is told nothing any more.
func isGone(err error) bool { return errors.Is(err, context.Canceled) }

func isBeyond(err error) bool  { return errors.Is(err, errBeyond) }
func isChanged(err error) bool { return errors.Is(err, errChanged) }
func isMethod(err error) bool  { return errors.Is(err, errMethod) }

func classify(err error) (apitypes.Error, int) {
	for _, class := range classes {
		if class.is(err) {
			// A message may quote what somebody sent; JSON takes UTF-8 alone.
			return apitypes.Error{Kind: class.kind, Message: strings.ToValidUTF8(err.Error(), "\uFFFD")}, class.status
		}
	}
	panic("the last class takes every error")
}
