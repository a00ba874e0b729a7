package e2b

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/lasting"
)

// asked answers all calls here, and remembers which sandboxes they were about.
type asked []string

func (a *asked) Route(_ http.ResponseWriter, req *http.Request, _ access.Caller, id string, _ bool) (context.Context, func(), error) {
	*a = append(*a, id)
	return req.Context(), func() {}, nil
}

func (*asked) Await(context.Context, string) error { return nil }

// A caller may have any header dropped on the way between hosts, by naming it in Connection: what a call that a host sends is
// about, the host says, and no call goes on without that being looked at.
func TestWhatHostsSend(t *testing.T) {
	var sent http.Handler
	var router asked
	id := lasting.NewID()
	newLab(t, func(c *Config) {
		anne, _ := c.Tokens.Named("anne")
		c.Cluster = &Cluster{Router: &asked{}, Sent: &router, SentBy: func(*http.Request) (access.Caller, string, error) { return anne, id, nil }}
		sent = New(*c).Sent
	})
	for _, call := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/v2/sandboxes", 201}, {"GET", "/sandboxes/" + id, 200}, {"POST", "/filesystem.Filesystem/Stat", 200},
		// What is signed is done as who is signed, whom no header names.
		{"GET", "/files?path=missing&signature=v1_x", 404}, {"GET", "/files?path=missing", 403},
		{"DELETE", "/sandboxes/" + id, 204},
	} {
		router = nil
		req := httptest.NewRequest(call.method, call.path, strings.NewReader("{}"))
		req.Header.Set("Content-Type", "application/json")
		if strings.HasPrefix(call.path, "/files?") {
			req.SetBasicAuth("root", "")
		}
		w := httptest.NewRecorder()
		sent.ServeHTTP(w, req)
		if len(router) != 1 || router[0] != id || w.Code != call.status {
			t.Errorf("%s %s: %d %s, routed as %q", call.method, call.path, w.Code, w.Body, router)
		}
	}
}
