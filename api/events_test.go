package api

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/cluster/changes"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// listen follows events until so many have come, each of which keeps to the contract.
func (w *ways) listen(t *testing.T, token, query, last string, n int) (list []types.ServiceEvent) {
	t.Helper()
	response, leave := w.follow(t, token, "/v1/events?"+query, last)
	defer leave()
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

// follow opens a stream over TCP. Its first byte has come.
func (w *ways) follow(t *testing.T, token, path, last string) (_ *http.Response, leave func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.tcp+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	response, err := w.client.Do(req)
	if err != nil || response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") == "application/json" {
		t.Fatal(response, err)
	}
	return response, func() {
		cancel()
		_ = response.Body.Close()
	}
}

// A caller gets only events that it may see, whichever user it asks for and wherever it says it left off.
func TestEventsOfAnother(t *testing.T) {
	w := openWays(t)
	stream, _ := w.Events()
	told := func(user string) {
		stream.Publish(events.Process, user, process.Changed{ID: "p-aaaaaaaaaaaa", Sandbox: "s", Name: user + "s", Status: "running"})
	}
	told("alice")
	told("bob")
	all := w.listen(t, fullToken, "replay=true", "", 3)
	for _, last := range []string{all[1].ID, eventID(stream, 0), "ANOTHERONE-1"} { // alice's, before all, and another service's
		list := w.listen(t, bobToken, "", last, 2)
		if list[1].Kind == types.ServiceGap {
			list = w.listen(t, bobToken, "", last, 3)[1:]
		}
		if list[1].UserID != "bob" {
			t.Errorf("after %s bob is told %+v", last, list[1])
		}
	}
	response, leave := w.follow(t, bobToken, "/v1/events?replay=true&userId=alice", "")
	defer leave()
	lines := bufio.NewReader(response.Body)
	if line, err := lines.ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	told("alice")
	close(w.stopping)
	if rest, err := io.ReadAll(lines); err != nil || strings.Contains(string(rest), "alice") {
		t.Errorf("bob asks for alice's and is told %s, %v", rest, err)
	}
}

// Every endless answer ends with its caller's token, and with no other.
func TestAStreamEndsWithItsToken(t *testing.T) {
	w := openWays(t)
	w.ready("alices")
	others, leave := w.follow(t, fullToken, "/v1/events", "")
	defer leave()
	var ending []*http.Response
	for _, path := range []string{"/v1/events", "/v1/egress/decisions?follow=true", "/v1/sandboxes/alices/processes/" + w.process + "/log?follow=true"} {
		response, leave := w.follow(t, aliceToken, path, "")
		defer leave()
		ending = append(ending, response)
	}
	w.tokens.Use(readTokens(t, `{"tokens":[{"name":"full","token":"`+fullToken+`"}]}`))
	for _, response := range ending {
		if _, err := io.ReadAll(response.Body); err != nil {
			t.Errorf("%s: %v", response.Request.URL, err)
		}
	}
	stream, _ := w.Events()
	stream.Publish(events.Container, "bob", dockerexec.Summary{Name: "bobs", User: "bob", State: "frozen"})
	for lines := bufio.NewScanner(others.Body); lines.Scan(); {
		if strings.Contains(lines.Text(), "bobs") {
			return
		}
	}
	t.Error("who has a token is told no more")
}

func TestEvents(t *testing.T) {
	w := openWays(t)
	stream, _ := w.Events()
	stream.Publish(events.Container, "bob", dockerexec.Summary{Name: "bobs", User: "bob", State: "frozen"})
	if _, err := w.Exec(t.Context(), "agent-7", sandbox.Request{Command: "echo \xff", Confinement: sandbox.Confinement{Permissions: []string{"@network"}, AllowedDomains: []string{"*"}}}, nil); err != nil {
		t.Fatal(err)
	}
	stream.Publish(events.Process, "alice", process.Changed{ID: "p-aaaaaaaaaaaa", Sandbox: "a", Name: "web\x01", Status: "running"})
	stream.Publish(events.Decision, "alice", decisions.Decision{Seq: 1, Count: 1, User: "alice", Name: "a\xff.org", Via: decisions.DNS, Verdict: decisions.Denied})
	stream.Publish(events.Decision, "", decisions.Decision{Seq: 2, Count: 1, Via: decisions.DNS, Verdict: decisions.Denied})
	stream.Publish(events.Container, "", dockerexec.Summary{Name: "nobodys", State: "pooled"})
	stream.Publish(events.Node, "", changes.Node{Name: "h1", State: "lost"})
	stream.Publish(events.Seat, "alice", changes.Seat{Host: "h2", From: "h1"})
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
	all := serve(fullToken, "replay=true", "", 11, " open container call call call process decision decision container node seat")
	if t.Failed() {
		return
	}
	serve(aliceToken, "replay=true", "", 7, " open call call call process decision seat")
	serve(bobToken, "replay=true", "", 2, " open container")
	serve(fullToken, "replay=true&userId=alice&kind=call,process", "", 5, " open call call call process")
	serve(fullToken, "kind=node", all[5].ID, 2, " open node")
	serve(fullToken, "", "ANOTHERONE-7", 12, " open gap container call call call process decision decision container node seat")
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
