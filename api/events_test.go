package api

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// listen follows events until so many have come, each of which keeps to the contract.
func (w *ways) listen(t *testing.T, token, query, last string, n int) (list []types.ServiceEvent) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.tcp+"/v1/events?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	response, err := w.client.Do(req)
	if err != nil || response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != serverSent {
		t.Fatal(response, err)
	}
	defer response.Body.Close()
	c := readContract(t)
	for lines := bufio.NewScanner(response.Body); len(list) < n && lines.Scan(); {
		if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
			if ok, why := c.takes(c.component(t, "ServiceEvent"), []byte(data)); !ok {
				t.Error(data, why)
			}
			var e types.ServiceEvent
			if err := json.Unmarshal([]byte(data), &e, json.RejectUnknownMembers(true)); err != nil {
				t.Error(err)
			}
			list = append(list, e)
		}
	}
	return list
}

func TestEvents(t *testing.T) {
	w := openWays(t)
	stream, _ := w.Events()
	stream.Publish(events.Container, "bob", dockerexec.Container{Name: "bobs", User: "bob", State: "frozen"})
	if _, err := w.Exec(t.Context(), "agent-7", sandbox.Request{Command: "echo \xff", Confinement: sandbox.Confinement{Permissions: []string{"@network"}, AllowedDomains: []string{"*"}}}, nil); err != nil {
		t.Fatal(err)
	}
	stream.Publish(events.Process, "alice", process.Changed{ID: "p-aaaaaaaaaaaa", Sandbox: "a", Name: "web\x01", Status: "running"})
	stream.Publish(events.Decision, "alice", decisions.Decision{Seq: 1, Count: 1, User: "alice", Name: "a\xff.org", Via: decisions.DNS, Verdict: decisions.Denied})
	stream.Publish(events.Decision, "", decisions.Decision{Seq: 2, Count: 1, Via: decisions.DNS, Verdict: decisions.Denied})
	kinds := func(list []types.ServiceEvent) (all string) {
		for _, e := range list {
			all += " " + string(e.Kind)
		}
		return all
	}
	serve := func(token, query, last string, n int, want string) (list []types.ServiceEvent) {
		t.Helper()
		if list = w.listen(t, token, query, last, n); kinds(list) != want {
			t.Errorf("%s after %q: %s, want %s", query, last, kinds(list), want)
		}
		return list
	}
	all := serve(fullToken, "replay=true", "", 8, " open container call call call process decision decision")
	if t.Failed() {
		return
	}
	serve(aliceToken, "replay=true", "", 6, " open call call call process decision")
	serve(bobToken, "replay=true", "", 2, " open container")
	serve(fullToken, "replay=true&userId=alice&kind=call,process", "", 5, " open call call call process")
	serve(fullToken, "", all[5].ID, 3, " open decision decision")
	serve(fullToken, "", "ANOTHERONE-7", 9, " open gap container call call call process decision decision")
	phases := []string{all[2].Call.Phase, all[3].Call.Phase, all[4].Call.Phase}
	if !slices.Equal(phases, []string{"began", "running", "ended"}) || all[4].Call.Outcome != "ok" || all[2].Call.Grants != "@network" || all[2].Call.Network != "*" {
		t.Errorf("%v %+v", phases, all[4].Call)
	}
	for _, query := range []string{"kind=frozen", "kind=", "replay=1", "userId=Bob", "user=bob"} {
		req := httptest.NewRequest(http.MethodGet, "/v1/events?"+query, nil)
		if _, _, _, err := readEventQuery(req, stream); err == nil {
			t.Errorf("%s is taken", query)
		}
	}
}
