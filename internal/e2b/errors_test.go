package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
)

// TestErrorsKeepTheirClass: the client makes its error classes of status and code.
func TestErrorsKeepTheirClass(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		code   connect.Code
		retry  string
	}{
		{errs.Invalid("x"), http.StatusBadRequest, connect.CodeInvalidArgument, ""},
		{errs.Unauthenticated("x"), http.StatusUnauthorized, connect.CodeUnauthenticated, ""},
		{errs.Denied("x"), http.StatusForbidden, connect.CodePermissionDenied, ""},
		{errs.NotFound("x"), http.StatusNotFound, connect.CodeNotFound, ""},
		{exists{"x"}, http.StatusConflict, connect.CodeAlreadyExists, ""},
		{errs.TooLarge("x"), http.StatusRequestEntityTooLarge, connect.CodeResourceExhausted, ""},
		{&quota.Exceeded{Retry: 2500 * time.Millisecond}, http.StatusTooManyRequests, connect.CodeResourceExhausted, "3"},
		{errs.Busy("x"), http.StatusTooManyRequests, connect.CodeResourceExhausted, "1"},
		{fmt.Errorf("x: %w", errs.ErrNoSpace), http.StatusInsufficientStorage, connect.CodeResourceExhausted, ""},
		{unimplemented{"x"}, http.StatusNotImplemented, connect.CodeUnimplemented, ""},
		{ended{"s", "x"}, http.StatusBadGateway, connect.CodeUnavailable, ""},
		{context.DeadlineExceeded, http.StatusGatewayTimeout, connect.CodeDeadlineExceeded, ""},
		{errors.New("x"), http.StatusInternalServerError, connect.CodeInternal, ""},
	} {
		w := httptest.NewRecorder()
		fail(w, tt.err)
		code := connect.CodeOf(connectError(t.Context(), tt.err))
		if retry := w.Header().Get("Retry-After"); w.Code != tt.status || code != tt.code || retry != tt.retry {
			t.Errorf("%v: %d, %v, %q; want %d, %v, %q", tt.err, w.Code, code, retry, tt.status, tt.code, tt.retry)
		}
	}
}
