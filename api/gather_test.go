package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/access"
)

// others are the hosts that a call is not sent to, and what they answer to who asks them all.
type others struct {
	t       *testing.T
	answers map[string]string
	asked   []string
	held    []string // whose calls some host was to hold
	refuses error    // to say where a call is answered
	awaited int      // sandboxes that the others were asked for
}

func (o *others) Route(_ http.ResponseWriter, req *http.Request, _ access.Caller, user string, looks bool) (context.Context, func(), error) {
	if !looks {
		o.held = append(o.held, user)
	}
	return req.Context(), func() {}, o.refuses
}
func (o *others) Await(context.Context, string) error { o.awaited++; return nil }
func (o *others) Host() string                        { return "h1" }

func (o *others) Gather(_ context.Context, caller access.Caller, path string) (map[string][]byte, []string) {
	if caller.Name == "" {
		o.t.Error("it is nobody's call")
	}
	o.asked = append(o.asked, path)
	answers := map[string][]byte{}
	for host, text := range o.answers {
		answers[host] = []byte(text)
	}
	return answers, []string{"h9"}
}

// TestErrorsOfAHostNameIt: errors of a host name that host, errors of a call do not.
func TestErrorsOfAHostNameIt(t *testing.T) {
	l := newLab(t, nil)
	cfg := l.config()
	o := &others{t: t}
	cfg.Router = o
	handler := New(l.Service, cfg)
	for want, err := range map[string]error{
		`host "h1": no lease`:         fmt.Errorf("no lease: %w", cerrdefs.ErrUnavailable),
		`host "h1": Docker is broken`: errors.New("Docker is broken"),
		"no such user":                fmt.Errorf("no such user: %w", cerrdefs.ErrNotFound),
	} {
		o.refuses = err
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/sandboxes/a/exec", strings.NewReader(`{"command":"true"}`)))
		var failure types.Failure
		if err := json.Unmarshal(w.Body.Bytes(), &failure); err != nil || failure.Error.Message != want {
			t.Errorf("%q, want %q, %v", failure.Error.Message, want, err)
		}
	}
}

// TestListsAreOfAllHosts: a request about no single user goes to all hosts, and the answer names those that do not answer.
func TestListsAreOfAllHosts(t *testing.T) {
	l := newLab(t, nil)
	o := &others{t: t, answers: map[string]string{
		"h2": `{"containers":[{"name":"c2","userId":"bob"}],"pooled":[{"name":"p2"}],"decisions":[{"seq":7,"time":"2026-01-02T15:04:05Z","name":"a.example.org"},{"seq":8,"time":"2026-01-02T15:04:07Z"}]}`,
		"h3": `{"containers":[],"decisions":[{"seq":3,"time":"2026-01-02T15:04:06Z"}]}`,
		"h4": `no list`,
	}}
	cfg := l.config()
	cfg.Router = o
	handler := New(l.Service, cfg)
	get := func(path string, into any) {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil || w.Code != http.StatusOK {
			t.Fatalf("%s: %d, %v: %s", path, w.Code, err, w.Body)
		}
	}
	missing := []string{"h4", "h9"}
	var containers types.ContainerList
	get("/v1/containers", &containers)
	if len(containers.Containers) != 1 || containers.Containers[0].Node != "h2" || len(containers.Pooled) != 1 || containers.Pooled[0].Node != "h2" || !slices.Equal(containers.Unanswered, missing) {
		t.Errorf("%+v", containers)
	}
	var decided types.DecisionList
	get("/v1/egress/decisions?limit=2", &decided)
	if list := decided.Decisions; len(list) != 2 || list[0].Node != "h3" || list[1].Node != "h2" || list[1].Seq != 8 || !slices.Equal(decided.Unanswered, missing) {
		t.Errorf("%+v", decided)
	}
	decided = types.DecisionList{}
	get("/v1/egress/decisions?userId=alice", &decided)
	if len(decided.Decisions)+len(decided.Unanswered) != 0 {
		t.Errorf("of one user: %+v", decided)
	}
	if len(o.held) > 0 {
		t.Errorf("who is only looked for has a host: %q", o.held)
	}
	if want := []string{"/v1/containers", "/v1/egress/decisions?limit=2"}; !slices.Equal(o.asked, want) {
		t.Errorf("asked %q", o.asked)
	}
}
