package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
)

// Each request is told of once, by its route and never by its path, with the kind of error that its caller got.
func TestCallsAreObserved(t *testing.T) {
	l := newLab(t, prints(dockerexec.Result{}, classed(cerrdefs.ErrUnavailable)))
	var seen []Call
	cfg := l.config()
	cfg.Observed = func(c Call) { seen = append(seen, c) }
	handler := New(l.Service, cfg)
	for _, path := range []string{"GET /v1/health", "GET /v1/sandboxes/alice-7", "GET /nowhere/secret", "POST /v1/sandboxes/agent-7/exec"} {
		method, path, _ := strings.Cut(path, " ")
		request := httptest.NewRequest(method, path, strings.NewReader(`{"command":"true"}`))
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Accept", ndjson)
		handler.ServeHTTP(httptest.NewRecorder(), request)
	}
	want := []Call{
		{Route: "GET /v1/health", Status: http.StatusOK},
		{Route: "GET /v1/sandboxes/{id}", Status: http.StatusNotFound, Kind: types.NotFound},
		{Route: "/", Status: http.StatusNotFound, Kind: types.NotFound},
		{Route: "POST /v1/sandboxes/{id}/exec", Status: http.StatusOK, Kind: types.Unavailable},
	}
	if diff := cmp.Diff(want, seen, cmpopts.IgnoreFields(Call{}, "Took")); diff != "" {
		t.Error(diff)
	}
}
