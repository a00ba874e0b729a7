package metrics

import (
	"encoding/json"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.yaml.in/yaml/v3"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/calls"
	"github.com/daycare-run/sandbox/internal/cluster/changes"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/cluster/member"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/events"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// present is a state that does not change.
type present State

func (p present) State() State { return State(p) }

// busy is a service of which there is something to say.
func busy() (*Metrics, *prometheus.Registry) {
	c := New()
	quotas := quota.New(quota.Limits{})
	quotas.Hold(quota.Account{User: "alice"}, quota.Containers, 2)
	state := present{
		Decisions:   map[decisions.Kind]uint64{{Via: decisions.DNS, Verdict: decisions.Denied}: 4},
		Networks:    map[string]egress.Stats{"isolated": {Containers: 2, Connections: 3, Forwarded: 5}},
		Budgets:     map[string]fair.Stats{"descriptors": {Used: 6, Total: 100, Refused: 9}},
		Connections: fair.Stats{Used: 3, Refused: 2},
		Containers: []dockerexec.Summary{
			{User: "alice", Runtime: "runsc", State: "busy"}, {User: "bob", Runtime: "runsc", State: "busy"},
			{User: "carol", Runtime: "runsc", State: "idle"}, {User: "dave", Runtime: "runsc", State: "frozen"},
		},
		Frozen: 8, Thawed: 6,
		Processes: process.Stats{ByStatus: map[process.State]int{process.Running: 2, process.Exited: 1}, Restarts: 7},
		Quotas:    quotas.Stats(),
		Pool: sandbox.PoolStats{
			Ready: 2, Classes: 1, Asked: map[string]uint64{"hit": 3}, Refills: 5, Refilling: 2 * time.Second, Off: "why",
		},
		Cluster: &member.State{
			Seats: 4, Hosts: 3, Fences: 1, Left: 5 * time.Second, Unheld: 7, Lost: 1,
			Calls: forward.Counts{Forwarded: 9, Lost: 2, Taken: 6, Took: 8 * time.Second},
		},
	}
	for range 3 {
		c.Observe(&events.Event{Detail: calls.Event{What: calls.Began}})
	}
	c.execEnded(calls.Exec{Outcome: "ok", InContainer: true, Cold: true, Decide: 1, Container: 2, Start: 3, Run: 4, Total: time.Second})
	c.execEnded(calls.Exec{Outcome: "refused", Total: time.Millisecond})
	c.Observe(&events.Event{Detail: api.Call{Route: "GET /v1/health", Status: 200, Took: time.Millisecond}})
	for _, err := range []error{nil, io.ErrUnexpectedEOF, io.ErrUnexpectedEOF} {
		c.Observe(&events.Event{Detail: changes.FenceCommand{Err: err}})
	}
	c.called(api.Call{Route: "POST /v1/sandboxes/{id}/exec", Status: 403, Kind: types.Denied, Took: time.Millisecond})
	c.called(api.Call{Route: "/", Status: 429, Kind: types.Busy, Quota: &quota.Exceeded{Resource: quota.Commands}, Took: time.Millisecond})
	c.Reloaded(sandbox.Loaded{At: time.Unix(1_600_000_000, 0)})
	c.Reloaded(sandbox.Loaded{At: time.Unix(1_700_000_000, 0), Pending: []string{"listen"}, TokensRefused: true})
	c.Reloaded(sandbox.Loaded{Refused: true})
	c.registry.MustRegister(stateCollector{state})
	return c, c.registry
}

func TestMetrics(t *testing.T) {
	_, registry := busy()
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "sandboxd_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	want := `
sandboxd_api_connections 3
sandboxd_api_connections_refused_total 2
sandboxd_cluster_fence_commands_total{outcome="failed"} 2
sandboxd_cluster_fence_commands_total{outcome="ok"} 1
sandboxd_cluster_fences_total 1
sandboxd_cluster_forwarded_calls_total 9
sandboxd_cluster_forwarded_seconds_total 8
sandboxd_cluster_hosts 3
sandboxd_cluster_lease_left_seconds 5
sandboxd_cluster_lost_calls_total 2
sandboxd_cluster_lost_hosts 1
sandboxd_cluster_seats 4
sandboxd_cluster_takeovers_total 6
sandboxd_cluster_unheld_users 7
sandboxd_container_freezes_total 8
sandboxd_container_thaws_total 6
sandboxd_containers{runtime="runsc",state="busy"} 2
sandboxd_containers{runtime="runsc",state="frozen"} 1
sandboxd_containers{runtime="runsc",state="idle"} 1
sandboxd_egress_budget_limit{budget="descriptors"} 100
sandboxd_egress_budget_refused_total{budget="descriptors"} 9
sandboxd_egress_budget_used{budget="descriptors"} 6
sandboxd_egress_connections{profile="isolated"} 3
sandboxd_egress_containers{profile="isolated"} 2
sandboxd_egress_decisions_total{verdict="denied",via="dns"} 4
sandboxd_egress_dns_forwarded_total{profile="isolated"} 5
sandboxd_errors_total{kind="busy"} 1
sandboxd_errors_total{kind="denied"} 1
sandboxd_exec_containers_total{start="cold"} 1
sandboxd_exec_containers_total{start="warm"} 0
sandboxd_exec_duration_seconds{outcome="ok",phase="container"} 1
sandboxd_exec_duration_seconds{outcome="ok",phase="decide"} 1
sandboxd_exec_duration_seconds{outcome="ok",phase="run"} 1
sandboxd_exec_duration_seconds{outcome="ok",phase="start"} 1
sandboxd_exec_duration_seconds{outcome="ok",phase="total"} 1
sandboxd_exec_duration_seconds{outcome="refused",phase="total"} 1
sandboxd_execs_in_flight 1
sandboxd_http_request_duration_seconds{route="/"} 1
sandboxd_http_request_duration_seconds{route="GET /v1/health"} 1
sandboxd_http_request_duration_seconds{route="POST /v1/sandboxes/{id}/exec"} 1
sandboxd_http_requests_total{code="2xx",route="GET /v1/health"} 1
sandboxd_http_requests_total{code="403",route="POST /v1/sandboxes/{id}/exec"} 1
sandboxd_http_requests_total{code="429",route="/"} 1
sandboxd_pool_classes 1
sandboxd_pool_containers 2
sandboxd_pool_first_calls_total{outcome="hit"} 3
sandboxd_pool_off 1
sandboxd_pool_refill_seconds_total 2
sandboxd_pool_refills_total 5
sandboxd_process_restarts_total 7
sandboxd_processes{status="exited"} 1
sandboxd_processes{status="running"} 2
sandboxd_quota_in_use{resource="containers"} 2
sandboxd_quota_refusals_total{resource="commands",scope="user"} 1
sandboxd_settings_loaded_timestamp_seconds 1.7e+09
sandboxd_settings_pending 1
sandboxd_settings_reloads_total{outcome="ok"} 1
sandboxd_settings_reloads_total{outcome="refused"} 2
`
	if diff := cmp.Diff(strings.TrimSpace(want), strings.Join(said(t, registry), "\n")); diff != "" {
		t.Error(diff)
	}
}

// said is a line for each of our metrics that has come to something; of a histogram, how often. The build is
// whatever it is.
func said(t *testing.T, registry *prometheus.Registry) (lines []string) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "sandboxd_") || family.GetName() == "sandboxd_build_info" {
			continue
		}
		for _, m := range family.Metric {
			labels := []string{}
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+`="`+l.GetValue()+`"`)
			}
			name := family.GetName()
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			text, _ := json.Marshal(value)
			if number := string(text); value != 0 || strings.HasPrefix(name, "sandboxd_exec_containers") {
				if value > 1e9 {
					number = "1.7e+09"
				}
				lines = append(lines, name+" "+number)
			}
		}
	}
	return lines
}

var named = regexp.MustCompile(`sandboxd_[a-z_]+`)

// What Grafana and Prometheus are told to look at has to be there.
func TestDashboardAndAlertsNameMetricsThatAreThere(t *testing.T) {
	_, registry := busy()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, family := range families {
		there[family.GetName()] = true
		if family.GetType().String() == "HISTOGRAM" {
			for _, end := range []string{"_bucket", "_sum", "_count"} {
				there[family.GetName()+end] = true
			}
		}
	}
	shown := map[string]bool{}
	for file, valid := range map[string]func([]byte) error{
		"../../deploy/grafana/dashboard.json": func(text []byte) error { var whole map[string]any; return json.Unmarshal(text, &whole) },
		"../../deploy/prometheus/alerts.yml":  func(text []byte) error { var whole map[string]any; return yaml.Unmarshal(text, &whole) },
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := valid(text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		names := named.FindAllString(string(text), -1)
		if len(names) < 5 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, name := range names {
			if !there[name] {
				t.Errorf("%s names %s, which there is not", file, name)
			}
			shown[strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count")] = true
		}
	}
	for _, family := range families {
		if name := family.GetName(); strings.HasPrefix(name, "sandboxd_") && !shown[name] {
			t.Errorf("%s is neither on the dashboard nor in the alerts", name)
		}
	}
}

// BenchmarkCallEvents is what events add to an exec, with the metrics that are told of them.
func BenchmarkCallEvents(b *testing.B) {
	stream := events.New(New().Observe)
	e := calls.Exec{Outcome: "ok", InContainer: true, Decide: 50e3, Container: 1e3, Start: 20e3, Run: 5e6, Total: 5.1e6}
	b.ReportAllocs()
	for b.Loop() {
		for _, what := range []string{calls.Began, calls.Running, calls.Ended} {
			stream.Publish(events.Call, "ann", calls.Event{ID: 1, What: what, Sandbox: "a", Command: "ls", Exec: e})
		}
	}
}
