package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/dockerexec/session"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/warm"
)

// decided are a few decisions of all kinds.
var decided = []decisions.Decision{
	{User: "alice", Container: "daycare-sandbox-alice-9f86d081884c", Name: "registry.npmjs.org", Via: decisions.TLS, Port: 443, Verdict: decisions.Allowed, Reason: "the name is allowed"},
	{User: "alice", Container: "daycare-sandbox-alice-9f86d081884c", Name: "files.example.org", Via: decisions.DNS, Type: "A", Verdict: decisions.Denied, Reason: types.ReasonNotAllowed},
	{User: "bob", Container: "daycare-sandbox-bob-4d3a0f5e2b1c", Name: "example.org", Via: decisions.HTTP, Port: 80, Verdict: decisions.Failed, Reason: "no address of the name could be connected to"},
	{Via: decisions.DNS, Type: "AAAA", Verdict: decisions.Denied, Reason: "nobody is known at this address"},
	{User: "bob", Container: "daycare-sandbox-bob-4d3a0f5e2b1c", Via: decisions.TLS, Port: 443, Verdict: decisions.Malformed, Reason: "what was sent to the TLS port is not TLS"},
}

// logOf is a log of decisions that were made a second apart.
func logOf(list ...decisions.Decision) *decisions.Log {
	log := decisions.New(10_000)
	decide(log, list...)
	return log
}

func decide(log *decisions.Log, list ...decisions.Decision) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 6, time.FixedZone("somewhere", 3600))
	for i, d := range list {
		d.Time = at.Add(time.Duration(i) * time.Second)
		log.Add(d)
	}
}

// decides is a lab in which this was decided.
func decides(t *testing.T, list ...decisions.Decision) *lab {
	t.Helper()
	l := newLab(t, nil)
	decide(l.Decisions(), list...)
	return l
}

// refusing is a lab whose commands are refused more names than a call is told of.
func refusing(t *testing.T) *lab {
	t.Helper()
	var l *lab
	l = newLab(t, func(_ context.Context, spec dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
		c.Started()
		for range 3 {
			l.Refuse(spec, decisions.Decision{Name: "a\xff.org", Via: decisions.DNS, Verdict: decisions.Denied, Reason: types.ReasonNotAllowed})
		}
		l.Refuse(spec, decisions.Decision{Via: decisions.TLS, Verdict: decisions.Malformed, Reason: "cut in a character: \xe2"})
		for n := range 64 {
			l.Refuse(spec, decisions.Decision{Name: fmt.Sprintf("n%d.org", n), Via: decisions.DNS, Verdict: decisions.Denied, Reason: types.ReasonNotAllowed})
		}
		return warm.Result{}, nil
	})
	return l
}

// egressExchanges are those of decisions, and what other routes say of egress.
func egressExchanges(t *testing.T) []exchange {
	const route, exec = "GET /v1/egress/decisions", "POST /v1/sandboxes/agent-7/exec"
	const body = `{"command":"npm install","permissions":["@network"],"allowedDomains":["*.example.org","*"],"packageManagers":["node","go"]}`
	refuses, full, last := refusing(t), newLab(t, nil), decides(t, decided...)
	for range 32 {
		if _, err := full.Decisions().Follow(decisions.Filter{}); err != nil {
			t.Fatal(err)
		}
	}
	close(last.stopping)
	return []exchange{
		{name: "refusals", route: exec, body: body, lab: refuses, status: 200},
		{name: "refusals in a stream", route: exec, body: body, accept: ndjson, lab: refuses, status: 200},
		{name: "a domain that is no text", route: exec, body: `{"command":"ls","allowedDomains":[1]}`, status: 400, breaks: true},
		{name: "presets that are no list", route: exec, body: `{"command":"ls","packageManagers":"node"}`, status: 400, breaks: true},

		{name: "none", route: route, status: 200},
		{name: "all", route: route, lab: last, status: 200},
		{name: "some", lab: last, status: 200,
			route: route + "?userId=alice&container=daycare-sandbox-alice-9f86d081884c&verdict=denied&via=dns&name=example.org&after=1&since=2026-01-02T15%3A04%3A05%2B01%3A00&limit=7&follow=false"},
		{name: "followed", route: route + "?follow=true", accept: ndjson, lab: last, status: 200},
		{name: "too many", route: route + "?follow=true", accept: ndjson, lab: full, status: 429},
		{name: "bad user", route: route + "?userId=Alice", status: 400, breaks: true},
		{name: "bad container", route: route + "?container=%2Fa", status: 400, breaks: true},
		{name: "bad verdict", route: route + "?verdict=refused", status: 400, breaks: true},
		{name: "bad way", route: route + "?via=icmp", status: 400, breaks: true},
		{name: "wildcard", route: route + "?name=*.example.org", status: 400, breaks: true},
		{name: "bad number", route: route + "?after=-1", status: 400, breaks: true},
		{name: "bad time", route: route + "?since=yesterday", status: 400, breaks: true},
		{name: "too long", route: route + "?limit=10001", status: 400, breaks: true},
		{name: "bad follow", route: route + "?follow=yes", status: 400, breaks: true},
	}
}

// TestParametersOfDecisions sends what has to be refused.
func TestParametersOfDecisions(t *testing.T) {
	server := newLab(t, nil).serve()
	for query, message := range map[string]string{
		"userId=":                  "userId is empty",
		"userId=Alice":             `userId "Alice" has upper-case letters`,
		"container=":               `container "" is not the name of a container`,
		"container=a%2Fb":          `container "a/b" is not the name`,
		"verdict=deny":             `verdict "deny" is not one of allowed, denied, failed, limited, malformed`,
		"via=sni":                  `via "sni" is not one of dns, tls, http`,
		"name=":                    `name "" is no host name`,
		"name=.":                   `name "." is no host name`,
		"name=a..b":                `name "a..b" is no host name`,
		"name=*.example.org":       `name "*.example.org" is no host name; one matches itself and all names below it, without a wildcard`,
		"name=https%3A%2F%2Fa.org": `name "https://a.org" is no host name`,
		"name=a%00b":               `name "a\x00b" is no host name`,
		"name=%ff.org":             `name "\xff.org" is no host name`,
		"name=" + strings.Repeat("a.", 127) + "org": "is no host name",
		"after=":                          `after "" is not the number of a decision`,
		"after=-1":                        `after "-1" is not the number of a decision`,
		"after=1.5":                       `after "1.5" is not the number of a decision`,
		"after=18446744073709551616":      `after "18446744073709551616" is not the number of a decision`,
		"since=10m":                       `since "10m" is not a time as in RFC 3339, such as 2006-01-02T15:04:05Z`,
		"since=2026-01-02T15:04:05":       `since "2026-01-02T15:04:05" is not a time`,
		"since=2026-01-02T15:04:05+01:00": `since "2026-01-02T15:04:05 01:00" is not a time as in RFC 3339, such as 2006-01-02T15:04:05Z, where a + is written %2B`,
		"limit=10001":                     `limit "10001" is not a number from 0 to 10000`,
		"limit=-1":                        `limit "-1" is not a number`,
		"limit=ten":                       `limit "ten" is not a number`,
		"limit=99999999999999999999":      "is not a number",
		"follow":                          `follow "" is neither true nor false`,
		"follow=1":                        `follow "1" is neither true nor false`,
		"user=alice":                      `unknown parameter "user"; there are userId, container, verdict, via, name, after, since, limit, follow`,
		"Name=a":                          `unknown parameter "Name"`,
		"via=dns&via=tls":                 "parameter via is given 2 times",
		"name=%zz":                        "the query cannot be read",
	} {
		req := exchange{route: "GET /v1/egress/decisions?" + query}.request(t, server.URL)
		if failure, status := refused(t, req); status != 400 || failure.Kind != types.Invalid || !strings.Contains(failure.Message, message) {
			t.Errorf("%s: %d %+v, want %s", query, status, failure, message)
		}
	}
}

// TestParametersSelect asks for decisions, which it tells apart by their numbers.
func TestParametersSelect(t *testing.T) {
	l := decides(t, append(slices.Clip(decided),
		decisions.Decision{User: "alice", Name: "xn--bcher-kva.example", Via: decisions.DNS, Verdict: decisions.Denied},
		decisions.Decision{User: "alice", Name: "_dmarc.badexample.org", Via: decisions.DNS, Verdict: decisions.Denied})...)
	for _, tt := range []struct {
		query string
		want  []uint64
	}{
		{"", []uint64{1, 2, 3, 4, 5, 6, 7}},
		{"userId=bob", []uint64{3, 5}},
		{"container=daycare-sandbox-alice-9f86d081884c", []uint64{1, 2}},
		{"verdict=denied", []uint64{2, 4, 6, 7}},
		{"via=tls", []uint64{1, 5}},
		{"name=example.org", []uint64{2, 3}},
		{"name=FILES.Example.Org.", []uint64{2}},
		{"name=_dmarc.badexample.org", []uint64{7}},
		{"name=B%C3%BCcher.example", []uint64{6}},
		{"name=nothing.test", nil},
		{"after=4", []uint64{5, 6, 7}},
		{"since=2026-01-02T15:04:09Z", []uint64{}},
		{"since=2026-01-02T14:04:09.000000006Z", []uint64{5, 6, 7}},
		{"limit=2", []uint64{6, 7}},
		{"limit=0", nil},
		{"via=dns&verdict=denied&limit=1&follow=false", []uint64{7}},
	} {
		text := l.answered(exchange{route: "GET /v1/egress/decisions?" + tt.query})
		var list types.DecisionList
		if err := json.Unmarshal([]byte(text), &list); err != nil || list.Decisions == nil {
			t.Fatalf("%s: %s %v", tt.query, text, err)
		}
		var got []uint64
		for _, d := range list.Decisions {
			got = append(got, d.Seq)
		}
		if fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %d, want %d", tt.query, got, tt.want)
		}
	}
}

func TestDecisionsAsJSON(t *testing.T) {
	l := decides(t, decided[1], decided[1], decided[0])
	const want = `{"decisions":[` +
		`{"seq":2,"time":"2026-01-02T14:04:06.000000006Z","first":"2026-01-02T14:04:05.000000006Z","count":2,"userId":"alice","container":"daycare-sandbox-alice-9f86d081884c",` +
		`"name":"files.example.org","via":"dns","type":"A","verdict":"denied","reason":"the name is not allowed for this call"},` +
		`{"seq":3,"time":"2026-01-02T14:04:07.000000006Z","first":"2026-01-02T14:04:07.000000006Z","count":1,"userId":"alice","container":"daycare-sandbox-alice-9f86d081884c",` +
		`"name":"registry.npmjs.org","via":"tls","port":443,"verdict":"allowed","reason":"the name is allowed"}]}`
	if got := l.answered(exchange{route: "GET /v1/egress/decisions"}); got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
}

// TestLinesOfDecisions holds what a follower is sent against its schema.
func TestLinesOfDecisions(t *testing.T) {
	c := readContract(t)
	one := decision(logOf(decided...).Recent(decisions.Filter{}, 1)[0])
	for _, tt := range []struct {
		event types.DecisionEvent
		takes bool
	}{
		{types.DecisionEvent{Decision: &one}, true},
		{types.DecisionEvent{Lost: 1}, true},
		{types.DecisionEvent{}, false},
		{types.DecisionEvent{Decision: &one, Lost: 1}, false},
	} {
		text, err := json.Marshal(tt.event)
		if err != nil {
			t.Fatal(err)
		}
		if ok, why := c.takes(c.component(t, "DecisionEvent"), text); ok != tt.takes {
			t.Errorf("%s: %t, %v", text, ok, why)
		}
	}
}

// The names that a call asks for are its container's in each form of exec, and refused names come back.
func TestEgressOfCalls(t *testing.T) {
	const asks = `"permissions":["@network"],"allowedDomains":["example.org","*.example.com"],"packageManagers":["node"]`
	l := refusing(t)
	server, body := l.serve(), `{"command":"x",`+asks+`}`
	want := []types.Refusal{
		{Name: "a\uFFFD.org", Via: types.ViaDNS, Verdict: types.VerdictDenied, Reason: types.ReasonNotAllowed, Count: 3},
		{Via: types.ViaTLS, Verdict: types.VerdictMalformed, Reason: "cut in a character: \uFFFD", Count: 1},
	}
	for form, run := range map[string]func() types.Result{
		"buffered": func() types.Result {
			var out types.Output
			if err := json.UnmarshalRead(post(t, server.URL, "", body), &out); err != nil {
				t.Fatal(err)
			}
			return out.Result
		},
		"streamed": func() types.Result {
			events := readEvents(t, post(t, server.URL, ndjson, body))
			return *events[len(events)-1].Result
		},
		"attached": func() types.Result {
			c := attachTo(t, server, body)
			c.expect(types.EventStart)
			event, _ := c.hear()
			for event.Type == types.EventEgress {
				event, _ = c.hear()
			}
			return *event.Result
		},
	} {
		result := run()
		if len(result.Egress) != 64 || result.EgressMore != 2 {
			t.Fatalf("%s: %d and %d more", form, len(result.Egress), result.EgressMore)
		}
		if diff := cmp.Diff(want, result.Egress[:2]); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", form, diff)
		}
	}
	var explained types.Explanation
	if err := json.Unmarshal([]byte(l.answered(exchange{route: "POST /v1/sandboxes/a/explain", body: "{" + asks + "}"})), &explained); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"example.org", "*.example.com", "registry.npmjs.org"} {
		if !strings.HasPrefix(explained.Network, "filtered") || !strings.Contains(explained.Network, name) {
			t.Errorf("explain: %s", explained.Network)
		}
	}
}

// The names that a call allows and denies are what its container may reach, in each form of exec.
func TestNamesReachTheContainer(t *testing.T) {
	const body = `{"command":"x","permissions":["@network"],"allowedDomains":["example.org","*.example.com"],"deniedDomains":["a.example.com"]}`
	asked := make(chan dockerexec.Egress, 1)
	server := newLab(t, func(_ context.Context, spec dockerexec.Spec, c warm.Command, _ session.Output) (warm.Result, error) {
		c.Started()
		asked <- spec.Egress
		return warm.Result{}, nil
	}).serve()
	for form, run := range map[string]func(){
		"buffered": func() { _ = post(t, server.URL, "", body).Close() },
		"streamed": func() { readEvents(t, post(t, server.URL, ndjson, body)) },
		"attached": func() { attachTo(t, server, body).expect(types.EventStart) },
	} {
		run()
		want := dockerexec.Egress{Profile: "isolated", Domains: []string{"*.example.com", "example.org"}, Denied: []string{"a.example.com"}}
		if diff := cmp.Diff(want, <-asked); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", form, diff)
		}
	}
}
