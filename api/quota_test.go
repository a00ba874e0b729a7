package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
)

// TestABoundOnEveryRoute: a caller who asks too often is refused before anything else is checked, and learns for how long.
func TestABoundOnEveryRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where time stands still
		var seen Call
		l := newLab(t, nil, bounded(quota.Bounds{}), observed(func(c Call) { seen = c }))
		cfg := l.config()
		o := &others{t: t}
		cfg.Router = o
		cfg.Authenticator = func(*http.Request) (access.Caller, error) {
			return access.Caller{Name: "t", Users: ids.Everyone(), Token: quota.Token{Name: "t", Own: quota.Bounds{RequestsPerSecond: 1}}}, nil
		}
		handler := New(l.Service, cfg)
		ask := func(method, path string) *httptest.ResponseRecorder {
			out := httptest.NewRecorder()
			handler.ServeHTTP(out, httptest.NewRequest(method, path, http.NoBody))
			return out
		}
		for range 2 { // as many as may come at once
			if out := ask(http.MethodGet, "/v1/health"); out.Code != http.StatusOK {
				t.Fatal(out.Code)
			}
		}
		for _, r := range routes {
			method, path, _ := strings.Cut(r.pattern, " ")
			out := ask(method, strings.NewReplacer("{id}", "a", "{execId}", "x", "{processId}", "p").Replace(path)+"?userId=madeup")
			if out.Code != http.StatusTooManyRequests || out.Header().Get("Retry-After") != "1" || seen.Quota == nil || seen.Quota.Name != "t" || seen.Quota.Resource != quota.Requests || method != http.MethodHead && !strings.Contains(out.Body.String(), `"limit":"requestsPerSecond"`) {
				t.Errorf("%s: %d, %q, %s, %+v", r.pattern, out.Code, out.Header().Get("Retry-After"), out.Body, seen)
			}
		}
		if len(o.held) > 0 || o.awaited > 0 || len(o.asked) > 0 {
			t.Errorf("other hosts were asked: %+v", o)
		}
	})
}
