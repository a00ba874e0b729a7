package e2b

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
)

// classes is the only map from an error's class to what clients are told: a status, and a code of
// the Connect protocol.
var classes = []struct {
	is     func(error) bool
	status int
	code   connect.Code
}{
	{isTooLarge, http.StatusRequestEntityTooLarge, connect.CodeResourceExhausted},
	{func(err error) bool {
		return errors.Is(err, errs.ErrNoSpace)
	}, http.StatusInsufficientStorage, connect.CodeResourceExhausted},
	{cerrdefs.IsNotImplemented, http.StatusNotImplemented, connect.CodeUnimplemented},
	{cerrdefs.IsInvalidArgument, http.StatusBadRequest, connect.CodeInvalidArgument},
	{cerrdefs.IsUnauthorized, http.StatusUnauthorized, connect.CodeUnauthenticated},
	{cerrdefs.IsPermissionDenied, http.StatusForbidden, connect.CodePermissionDenied},
	{cerrdefs.IsNotFound, http.StatusNotFound, connect.CodeNotFound},
	{cerrdefs.IsAlreadyExists, http.StatusConflict, connect.CodeAlreadyExists},
	{cerrdefs.IsConflict, http.StatusConflict, connect.CodeFailedPrecondition},
	{cerrdefs.IsFailedPrecondition, http.StatusConflict, connect.CodeFailedPrecondition},
	{cerrdefs.IsOutOfRange, http.StatusRequestEntityTooLarge, connect.CodeResourceExhausted},
	{cerrdefs.IsResourceExhausted, http.StatusTooManyRequests, connect.CodeResourceExhausted},
	{func(err error) bool {
		return errors.Is(err, context.DeadlineExceeded)
	}, http.StatusGatewayTimeout, connect.CodeDeadlineExceeded},
	{func(err error) bool {
		return errors.Is(err, context.Canceled)
	}, http.StatusServiceUnavailable, connect.CodeCanceled},
	{cerrdefs.IsUnavailable, http.StatusBadGateway, connect.CodeUnavailable},
	// 502 would tell clients that the sandbox has ended.
	{func(error) bool { return true }, http.StatusInternalServerError, connect.CodeInternal},
}

func isTooLarge(err error) bool {
	_, is := errors.AsType[*http.MaxBytesError](err)
	return is
}

func classify(err error) (status int, code connect.Code) {
	for _, class := range classes {
		if class.is(err) {
			return class.status, class.code
		}
	}
	panic("the last class takes every error")
}

func invalid(format string, args ...any) error  { return errs.Invalid(format, args...) }
func notFound(format string, args ...any) error { return errs.NotFound(format, args...) }

// unimplemented is the error for a feature of E2B that this service lacks.
type unimplemented struct{ what string }

func (e unimplemented) Error() string { return "this service has no " + e.what }
func (unimplemented) Unwrap() error   { return cerrdefs.ErrNotImplemented }

// exists is the error for a name that is taken.
type exists struct{ text string }

func (e exists) Error() string { return e.text }
func (exists) Unwrap() error   { return cerrdefs.ErrAlreadyExists }

// ended is the error for a sandbox that is gone or paused: clients recognize it by 502.
type ended struct{ id, text string }

func (e ended) Error() string { return e.text }
func (ended) Unwrap() error   { return cerrdefs.ErrUnavailable }

// notOpen is the error for a port at which nothing listens.
type notOpen struct {
	ended
	port int
}

func (e notOpen) Unwrap() error { return e.ended }

// message returns an error's text for clients, which know the home's directory by its path. It is
// valid UTF-8, as JSON is.
func message(err error) string {
	text := strings.ReplaceAll(err.Error(), `"~/user`, `"/home/user`)
	return strings.ToValidUTF8(strings.ReplaceAll(text, `"~`, `"/home`), "\uFFFD")
}

// fail answers with an error in the form of the control plane.
func fail(w http.ResponseWriter, err error) {
	status, _ := classify(err)
	switch status {
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", quota.RetryAfter(err))
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "X-API-KEY")
	}
	body := struct {
		SandboxID string `json:"sandboxId,omitzero"`
		Code      int    `json:"code"`
		Message   string `json:"message"`
		Port      int    `json:"port,omitzero"`
		Detail    string `json:"detail,omitzero"` // what E2B does not say
	}{Code: status, Message: message(err)}
	if closed, is := errors.AsType[notOpen](err); is {
		body.Port, body.Detail = closed.port,
			fmt.Sprintf("nothing listens at port %d of its loopback", closed.port)
	}
	if gone, is := errors.AsType[ended](err); is {
		body.SandboxID = gone.id
	}
	answer(w, status, body)
}

// failPlain and failConnect answer calls into a sandbox that reach no handler.
func failPlain(w http.ResponseWriter, _ *http.Request, err error) { fail(w, err) }

var connectErrors = connect.NewErrorWriter()

func failConnect(w http.ResponseWriter, req *http.Request, err error) {
	if _, is := errors.AsType[ended](err); is {
		fail(w, err) // as the proxy in front of E2B's sandboxes does
		return
	}
	if connectErrors.IsSupported(req) {
		_ = connectErrors.Write(w, req, connectError(req.Context(), err)) // if it is there
		return
	}
	fail(w, err)
}

// connectError gives an error its code.
func connectError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, is := errors.AsType[*connect.Error](err); is {
		return err
	}
	_, code := classify(err)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = connect.CodeDeadlineExceeded
	}
	return connect.NewError(code, errors.New(message(err)))
}

func answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body, jsontext.AllowInvalidUTF8(true),
		json.FormatNilSliceAsNull(false))
	if err != nil {
		status, text = http.StatusInternalServerError,
			[]byte(`{"code":500,"message":"cannot write the answer"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, string(text)+"\n") // the client may have gone
}

// faultsOfCallers makes it the caller's fault if a stream cannot be read: for faults in its
// envelopes, connect blames the service.
type faultsOfCallers struct{}

// readKey is the context key at which a stream's handler says that there was something to read.
type readKey struct{}

func (faultsOfCallers) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc { return next }

func (faultsOfCallers) WrapStreamingClient(
	next connect.StreamingClientFunc,
) connect.StreamingClientFunc {
	return next
}

func (faultsOfCallers) WrapStreamingHandler(
	next connect.StreamingHandlerFunc,
) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		read := false
		err := next(context.WithValue(ctx, readKey{}, &read), conn)
		if code := connect.CodeOf(err); err != nil && !read &&
			(code == connect.CodeInternal || code == connect.CodeUnknown) {
			return connect.NewError(connect.CodeInvalidArgument, err)
		}
		return err
	}
}
