package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// TestAnswersTakeMemory asks for what may be large with ever less memory: the answer needs some, and is refused without.
func TestAnswersTakeMemory(t *testing.T) {
	l := newLab(t, nil)
	l.Register("a")
	l.Register("b")
	l.Decisions().Add(decisions.Decision{User: "alice", Name: "a.org", Via: decisions.DNS, Verdict: decisions.Denied})
	p := l.Start(process.Intent{Command: "true"})
	l.Print(p, strings.Repeat("x", 10_000))
	for _, tt := range []struct {
		path          string
		handle        handler
		least, enough int
	}{
		{"/v1/sandboxes", answers((*server).list), 300, 2048},
		{"/v1/egress/decisions?limit=1000", (*server).decisions, 200_000, 1 << 20},
		{"/v1/egress/decisions?limit=1000&follow=true", (*server).decisions, 200_000, 1 << 20},
		{"/v1/sandboxes/a/processes/" + p.ID + "/log", (*server).processLog, 20_000, 40_000},
	} {
		ask := func(room int) error {
			pool := fair.NewPool(4*room, 0) // of which one may have a quarter
			following := newFollowing()
			s := &server{cfg: l.config(), service: l.Service, memory: &requestMemory{of: pool}, following: &following}
			ctx, gone := context.WithCancel(t.Context())
			gone() // so that no stream goes on
			req := httptest.NewRequestWithContext(ctx, http.MethodGet, tt.path, nil)
			req.SetPathValue("id", "a")
			req.SetPathValue("processId", p.ID)
			return tt.handle(s, httptest.NewRecorder(), req)
		}
		if err := ask(tt.enough); err != nil {
			t.Errorf("%s, with enough: %v", tt.path, err)
		}
		if err := ask(tt.least - 1); !cerrdefs.IsResourceExhausted(err) {
			t.Errorf("%s, with too little: %v", tt.path, err)
		}
	}
}
