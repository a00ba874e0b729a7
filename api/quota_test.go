package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/quota"
)

// TestABoundOnEveryRoute has whoever asks too often be refused before anything is looked at, and told for how long.
func TestABoundOnEveryRoute(t *testing.T) {
	full := &quota.Exceeded{Resource: quota.Requests, Name: "alice", Bound: 5, Setting: "quotas.perUser.requestsPerSecond", Retry: 1500 * time.Millisecond}
	var seen Call
	handler := New(&fakeService{busy: full}, Config{
		Authenticator: anyone, Version: "v1", MaxRequest: testMaxRequest, MaxOutput: testMaxOutput, Log: zerolog.Nop(),
		Observed: func(c Call) { seen = c },
	})
	for _, r := range routes {
		method, path, _ := strings.Cut(r.pattern, " ")
		out := httptest.NewRecorder()
		handler.ServeHTTP(out, httptest.NewRequest(method, strings.NewReplacer("{id}", "a", "{execId}", "x", "{processId}", "p").Replace(path), http.NoBody))
		if out.Code != http.StatusTooManyRequests || out.Header().Get("Retry-After") != "2" || seen.Quota != full {
			t.Errorf("%s: %d, %q, %+v", r.pattern, out.Code, out.Header().Get("Retry-After"), seen)
		}
	}
}
