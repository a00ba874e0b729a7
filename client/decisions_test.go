package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/client"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/warm"
)

var at = time.Date(2026, 1, 2, 15, 4, 5, 6, time.UTC)

// denied is one of alice's decisions.
func denied(name string) decisions.Decision {
	return decisions.Decision{
		Time: at, User: "alice", Container: "daycare-sandbox-alice-0123", Name: name, Via: decisions.TLS, Port: 443,
		Verdict: decisions.Denied, Reason: types.ReasonNotAllowed,
	}
}

func TestDecisions(t *testing.T) {
	l := newLab(t, nil)
	c, log := l.dial(t), l.Decisions()
	if none, err := c.Decisions(t.Context(), client.DecisionQuery{}); err != nil || len(none) > 0 {
		t.Errorf("%+v %v", none, err)
	}
	log.Add(decisions.Decision{Time: at.Add(-time.Nanosecond), User: "bob", Name: "b.org", Via: decisions.DNS, Type: "A", Verdict: decisions.Allowed})
	log.Add(denied("a.org"))
	log.Add(denied("a.org"))
	zero, one := 0, 1
	want := types.Decision{
		Seq: 3, Time: at, First: at, Count: 2, UserID: "alice", Container: "daycare-sandbox-alice-0123", Name: "a.org",
		Via: types.ViaTLS, Port: 443, Verdict: types.VerdictDenied, Reason: types.ReasonNotAllowed,
	}
	for name, q := range map[string]client.DecisionQuery{
		"user": {UserID: "alice"}, "container": {Container: want.Container}, "verdict": {Verdict: types.VerdictDenied},
		"via": {Via: types.ViaTLS}, "name": {Name: "A.org."}, "after": {After: 1}, "limit": {Limit: &one},
		"since": {Since: at.In(time.FixedZone("somewhere", 3600))},
	} {
		got, err := c.Decisions(t.Context(), q)
		if diff := cmp.Diff([]types.Decision{want}, got); diff != "" || err != nil {
			t.Errorf("%s: %v, want (-), got (+):\n%s", name, err, diff)
		}
	}
	if none, err := c.Decisions(t.Context(), client.DecisionQuery{Limit: &zero}); err != nil || len(none) > 0 {
		t.Errorf("%+v %v", none, err)
	}
	var failure *client.Error
	if _, err := c.Decisions(t.Context(), client.DecisionQuery{Name: "*"}); !errors.As(err, &failure) || failure.Kind != types.Invalid {
		t.Errorf("%#v", err)
	}
}

// A follower sees what was, what comes, and the end of the service.
func TestFollowDecisions(t *testing.T) {
	l := newLab(t, nil)
	c := l.dial(t)
	l.Decisions().Add(denied("a.org"))
	var seen []string
	var end error
	for event, err := range c.FollowDecisions(t.Context(), client.DecisionQuery{UserID: "alice"}) {
		if err != nil {
			end = err
			continue
		}
		seen = append(seen, event.Name)
		switch len(seen) {
		case 1:
			l.Decisions().Add(denied("b.org"))
		case 2:
			close(l.stopping)
		}
	}
	if !errors.Is(end, client.ErrStopped) || !cmp.Equal(seen, []string{"a.org", "b.org"}) {
		t.Errorf("%q %v", seen, end)
	}
}

// More followers leave, one after the other, than there may be at a time.
func TestFollowersLeave(t *testing.T) {
	l := newLab(t, nil)
	c := l.dial(t)
	l.Decisions().Add(denied("a.org"))
	deadline := time.Now().Add(time.Minute)
	for left := 0; left < 40; {
		for event, err := range c.FollowDecisions(t.Context(), client.DecisionQuery{}) {
			var failure *client.Error
			switch {
			case errors.As(err, &failure) && failure.Kind == types.Busy && time.Now().Before(deadline):
			case err != nil || event.Name != "a.org":
				t.Fatalf("%+v %v", event, err)
			default:
				left++
			}
			break
		}
	}
}

func TestCancelEndsFollowing(t *testing.T) {
	l := newLab(t, nil)
	c := l.dial(t)
	l.Decisions().Add(denied("a.org"))
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	for range 2 { // in the middle, and before the begin
		var end error
		for _, err := range c.FollowDecisions(ctx, client.DecisionQuery{}) {
			cancel(why)
			end = err
		}
		if !errors.Is(end, why) {
			t.Error(end)
		}
	}
}

// The lines come from a fake: lines that are not JSON, and an end without a proper one, are errors.
func TestStreamsOfDecisions(t *testing.T) {
	for _, tt := range []struct{ name, body, seen, end string }{
		{"empty lines and a loss", "\n\n" + `{"seq":1,"name":"a.org"}` + "\n\n" + `{"lost":7}` + "\n" + `{"seq":9,"new":1}` + "\n", "1 a.org; lost 7; 9 ; ", "the service has stopped"},
		{"cut in a line", `{"seq":1,"na`, "", "connection to the service was lost"},
		{"no JSON", "hello\n", "", "cannot read the service's answer"},
		{"dies", "", "", "connection to the service was lost"},
	} {
		c := dialHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(tt.body))
			_ = http.NewResponseController(w).Flush()
			if tt.name == "dies" {
				panic(http.ErrAbortHandler)
			}
		}))
		seen, end := "", error(nil)
		for event, err := range c.FollowDecisions(t.Context(), client.DecisionQuery{}) {
			switch {
			case err != nil:
				end = err
			case event.Decision == nil:
				seen += fmt.Sprintf("lost %d; ", event.Lost)
			default:
				seen += fmt.Sprintf("%d %s; ", event.Seq, event.Name)
			}
		}
		if seen != tt.seen || end == nil || !strings.Contains(end.Error(), tt.end) {
			t.Errorf("%s: %q %v", tt.name, seen, end)
		}
	}
}

func TestEgressOfAnExec(t *testing.T) {
	var l *lab
	l = newLab(t, func(_ context.Context, spec dockerexec.Spec, command warm.Command, _ session.Output) (warm.Result, error) {
		command.Started()
		for n := range 67 {
			l.Refuse(spec, decisions.Decision{Name: fmt.Sprintf("n%d.%s", n, spec.Egress.Domains[0]), Via: decisions.DNS, Verdict: decisions.Denied, Reason: types.ReasonNotAllowed})
		}
		return warm.Result{}, nil
	})
	c := l.dial(t)
	e := types.Exec{Command: "x", Permissions: []string{"@network"}, AllowedDomains: []string{"a.org"}}
	out, execErr := c.Exec(t.Context(), "agent-7", e)
	attached, attachErr := c.Attach(t.Context(), "agent-7", e, client.Streams{})
	if err := errors.Join(execErr, attachErr); err != nil {
		t.Fatal(err)
	}
	want := types.Refusal{Name: "n0.a.org", Via: types.ViaDNS, Verdict: types.VerdictDenied, Reason: types.ReasonNotAllowed, Count: 1}
	for _, r := range []types.Result{out.Result, attached} {
		if len(r.Egress) != 64 || r.Egress[0] != want || r.EgressMore != 3 {
			t.Errorf("%d more than %+v", r.EgressMore, r.Egress)
		}
	}
}
