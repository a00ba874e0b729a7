package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
	"github.com/daycare-run/sandbox/internal/warm"
)

// observed has told be called for each request that was answered.
func observed(told func(Call)) func(*sandboxtest.Options) {
	return func(o *sandboxtest.Options) {
		before := o.Config
		o.Config = func(cfg *sandbox.Config) {
			if before != nil {
				before(cfg)
			}
			cfg.Events = events.New(func(e *events.Event) {
				if c, is := e.Detail.(Call); is {
					told(c)
				}
			})
		}
	}
}

// Each request is reported once, by its route and never by its path, with the kind of error that its caller got.
func TestCallsAreObserved(t *testing.T) {
	var seen []Call
	handler := newLab(t, prints(warm.Result{}, classed(cerrdefs.ErrUnavailable)), observed(func(c Call) { seen = append(seen, c) })).handler()
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
	if diff := cmp.Diff(want, seen, cmpopts.IgnoreFields(Call{}, "Took"), cmpopts.IgnoreUnexported(Call{})); diff != "" {
		t.Error(diff)
	}
}

// Of what a call carries, its event has only the command and what the call asks for.
func TestEventsHaveNoSecret(t *testing.T) {
	var seen strings.Builder
	l := newLab(t, prints(warm.Result{}, nil), func(o *sandboxtest.Options) {
		o.Config = func(cfg *sandbox.Config) {
			cfg.Events = events.New(func(e *events.Event) { fmt.Fprintf(&seen, "%+v\n", *e) })
		}
	})
	request := httptest.NewRequest(http.MethodPost, "/v1/sandboxes/agent-7/exec", strings.NewReader(`{"command":"make","env":{"A":"TOPSECRET"},"secrets":{"B":"TOPSECRET"},"stdin":"TOPSECRET"}`))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer TOPSECRET")
	l.handler().ServeHTTP(httptest.NewRecorder(), request)
	if text := seen.String(); strings.Count(text, "\n") < 3 || !strings.Contains(text, "make") || strings.Contains(text, "TOPSECRET") {
		t.Errorf("the events:\n%s", text)
	}
}
