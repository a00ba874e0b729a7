package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/version"
)

// metricsHandler answers with what the service counts. No label has a value that a tenant chooses.
func metricsHandler(d *daemon) http.Handler {
	state := &stateCollector{
		verdicts: d.decisions.Totals, networks: d.networks.Stats, budgets: d.networks.Budgets, api: d.connections.Stats,
		containers: d.executor.Containers, freezes: d.executor.Freezes, processes: d.processes.Stats, quotas: d.quotas.Stats, pool: d.pool.Stats,
	}
	all := registry(d.metrics, state)
	if d.member != nil {
		all.MustRegister(clusterCollector(d.member.state))
	}
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{})
}

func registry(c *metrics, state *stateCollector) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), state,
	)
	registry.MustRegister(c.collectors()...)
	return registry
}

var (
	decided = prometheus.NewDesc("sandboxd_egress_decisions_total",
		"Questions to the DNS filter and connections to the guard, by verdict.", []string{"via", "verdict"}, nil)
	forwarded = prometheus.NewDesc("sandboxd_egress_dns_forwarded_total",
		"Questions put to upstream resolvers.", []string{"profile"}, nil)
	connected = prometheus.NewDesc("sandboxd_egress_connections",
		"Connections that are open through the guard.", []string{"profile"}, nil)
	networked = prometheus.NewDesc("sandboxd_egress_containers",
		"Containers that have an address.", []string{"profile"}, nil)
	budgeted = prometheus.NewDesc("sandboxd_egress_budget_used",
		"What users' connections have of each budget (descriptors, hellos and buffers in bytes, ports); no user can take all of one.", []string{"budget"}, nil)
	budgetLimit = prometheus.NewDesc("sandboxd_egress_budget_limit",
		"All that users' connections may have of each budget; of ports, towards all destinations.", []string{"budget"}, nil)
	overspent = prometheus.NewDesc("sandboxd_egress_budget_refused_total",
		"Connections and requests that were refused because their user's part of a budget was used up.", []string{"budget"}, nil)
	connections = prometheus.NewDesc("sandboxd_api_connections",
		"Connections to the API, idle ones included.", nil, nil)
	crowded = prometheus.NewDesc("sandboxd_api_connections_refused_total",
		"Connections to the API that were refused because their caller's share was used up, with a request on each.", nil, nil)
	warmed = prometheus.NewDesc("sandboxd_containers",
		"Containers for execs, by state (starting, idle, frozen, busy) and runtime.", []string{"state", "runtime"}, nil)
	froze = prometheus.NewDesc("sandboxd_container_freezes_total",
		"Times that an idle container was frozen.", nil, nil)
	thawed = prometheus.NewDesc("sandboxd_container_thaws_total",
		"Times that a frozen container was thawed for a call.", nil, nil)
	processed = prometheus.NewDesc("sandboxd_processes",
		"Durable processes by status, those that have ended included.", []string{"status"}, nil)
	restarted = prometheus.NewDesc("sandboxd_process_restarts_total",
		"Times that a durable process was started again.", nil, nil)
	inUse = prometheus.NewDesc("sandboxd_quota_in_use",
		"What all users have together, by resource (the key in quotas).", []string{"resource"}, nil)
	queued = prometheus.NewDesc("sandboxd_cold_starts_waiting",
		"Containers that wait for their turn to be made.", nil, nil)
	pooled = prometheus.NewDesc("sandboxd_pool_containers",
		"Containers that wait for a user who is still to come.", nil, nil)
	pooledKinds = prometheus.NewDesc("sandboxd_pool_classes",
		"Kinds of first calls for which containers wait.", nil, nil)
	poolAsked = prometheus.NewDesc("sandboxd_pool_first_calls_total",
		"First execs of users without a home, and sandboxes of E2B's clients, by what the pool was for them: hit, or why the container had to be made (empty: none waited; unlike: of a kind for which none do; failed).", []string{"outcome"}, nil)
	poolOff = prometheus.NewDesc("sandboxd_pool_off",
		"1 when the pool has turned itself off, because the file system of usersDir cannot be used for it.", nil, nil)
	poolRefills = prometheus.NewDesc("sandboxd_pool_refills_total",
		"Containers that were made for the pool.", nil, nil)
	poolRefilling = prometheus.NewDesc("sandboxd_pool_refill_seconds_total",
		"Time that it took to make them.", nil, nil)
	built = prometheus.NewDesc("sandboxd_build_info",
		"Which build the service is; always 1.", []string{"version", "revision", "goversion"}, nil)
)

// stateCollector reads what is known anyway.
type stateCollector struct {
	verdicts   func() map[decisions.Kind]uint64
	networks   func() map[string]egress.Stats
	budgets    func() map[string]budget.Stats
	api        func() budget.Stats
	containers func() []dockerexec.Container
	freezes    func() (frozen, thawed uint64)
	processes  func() process.Stats
	quotas     func() quota.Stats
	pool       func() sandbox.PoolStats
}

// Describe implements prometheus.Collector: which labels there are is found at the time of the scrape, so nothing is said before.
func (*stateCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads all at the time of the scrape.
func (c *stateCollector) Collect(to chan<- prometheus.Metric) {
	counter := func(desc *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	gauge := func(desc *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), labels...)
	}
	for kind, n := range c.verdicts() {
		counter(decided, n, string(kind.Via), string(kind.Verdict))
	}
	for profile, s := range c.networks() {
		counter(forwarded, s.Forwarded, profile)
		gauge(connected, int(s.Connections), profile)
		gauge(networked, s.Containers, profile)
	}
	for name, s := range c.budgets() {
		gauge(budgeted, s.Used, name)
		gauge(budgetLimit, s.Total, name)
		counter(overspent, s.Refused, name)
	}
	api := c.api()
	gauge(connections, api.Used)
	counter(crowded, api.Refused)
	type kind struct{ state, runtime string }
	containers := map[kind]int{}
	for _, found := range c.containers() {
		containers[kind{found.State, found.Runtime}]++
	}
	for kind, n := range containers {
		gauge(warmed, n, kind.state, kind.runtime)
	}
	freezes, thaws := c.freezes()
	counter(froze, freezes)
	counter(thawed, thaws)
	p := c.processes()
	for status, n := range p.ByStatus {
		gauge(processed, n, string(status))
	}
	counter(restarted, p.Restarts)
	q := c.quotas()
	for _, resource := range quota.Resources() {
		if resource != quota.Requests { // of which there are so many in a second, not at a time
			gauge(inUse, q.InUse[resource], resource.String())
		}
	}
	gauge(queued, q.Waiting)
	c.collectPool(counter, gauge)
	to <- prometheus.MustNewConstMetric(poolRefilling, prometheus.CounterValue, c.pool().Refilling.Seconds())
	b := version.Read()
	gauge(built, 1, b.Version, b.Revision, b.Go)
}

func (c *stateCollector) collectPool(counter func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, int, ...string)) {
	pool := c.pool()
	gauge(pooled, pool.Ready)
	gauge(pooledKinds, pool.Classes)
	off := 0
	if pool.Off != "" {
		off = 1
	}
	gauge(poolOff, off)
	for _, outcome := range sandbox.PoolOutcomes {
		counter(poolAsked, pool.Asked[outcome], outcome)
	}
	counter(poolRefills, pool.Refills)
}
