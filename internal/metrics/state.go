package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/cluster/member"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/fair"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/version"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// State is what the parts of the service know at one moment.
type State struct {
	Decisions      map[decisions.Kind]uint64
	Networks       map[string]egress.Stats
	Budgets        map[string]fair.Stats
	Connections    fair.Stats // to the API
	Containers     []dockerexec.Summary
	Frozen, Thawed uint64
	Processes      process.Stats
	Quotas         quota.Stats
	Pool           sandbox.PoolStats
	Cluster        *member.State // nil on a single host
}

// Source is asked for the present state at each scrape.
type Source interface{ State() State }

// Handler serves the metrics, with what source says. It is called once.
func (c *Metrics) Handler(source Source) http.Handler {
	c.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), stateCollector{source})
	return promhttp.HandlerFor(c.registry, promhttp.HandlerOpts{})
}

// stateCollector collects what other parts of the service know already.
type stateCollector struct{ source Source }

// scrape receives the metrics of one scrape.
type scrape chan<- prometheus.Metric

// number is the type of a value that a metric is read from.
type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// counter sends a value that only grows. The labels are names, each followed by its value.
func counter[N number](to scrape, name, help string, n N, labels ...string) {
	to.tell(prometheus.CounterValue, name, help, float64(n), labels)
}

// gauge sends a current value.
func gauge[N number](to scrape, name, help string, n N, labels ...string) {
	to.tell(prometheus.GaugeValue, name, help, float64(n), labels)
}

func (to scrape) tell(kind prometheus.ValueType, name, help string, n float64, labels []string) {
	var names, values []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	to <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, n,
		values...)
}

// Describe implements prometheus.Collector. It describes nothing, because the labels are known only
// at a scrape.
func (stateCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. It reads everything at the time of the scrape.
func (c stateCollector) Collect(to chan<- prometheus.Metric) {
	s := c.source.State()
	collectEgress(to, s)
	api := s.Connections
	gauge(to, "sandboxd_api_connections", "Connections to the API, including idle ones.", api.Used)
	counter(to, "sandboxd_api_connections_refused_total",
		"Connections to the API that were refused because their caller's share was used up, with a request on each.",
		api.Refused)
	collectContainers(to, s)
	for status, n := range s.Processes.ByStatus {
		gauge(to, "sandboxd_processes",
			"Durable processes by status, including those that have ended.", n, "status",
			string(status))
	}
	counter(to, "sandboxd_process_restarts_total", "Times that a durable process was restarted.",
		s.Processes.Restarts)
	for _, resource := range quota.Resources() {
		if resource != quota.Requests { // these are a rate, not a number at a time
			gauge(to, "sandboxd_quota_in_use",
				"What all users have together, by resource (the key in quotas).",
				s.Quotas.InUse[resource], "resource", resource.String())
		}
	}
	gauge(to, "sandboxd_cold_starts_waiting", "Containers that wait for their turn to be made.",
		s.Quotas.Waiting)
	collectPool(to, s.Pool)
	if s.Cluster != nil {
		collectCluster(to, *s.Cluster)
	}
	b := version.Read()
	gauge(to, "sandboxd_build_info", "Which build the service is; always 1.", 1, "version",
		b.Version, "revision", b.Revision, "goversion", b.Go)
}

func collectEgress(to scrape, state State) {
	for kind, n := range state.Decisions {
		counter(to, "sandboxd_egress_decisions_total",
			"Questions to the DNS filter and connections to the guard, by verdict.", n,
			"via", string(kind.Via), "verdict", string(kind.Verdict))
	}
	for profile, s := range state.Networks {
		counter(to, "sandboxd_egress_dns_forwarded_total", "Questions put to upstream resolvers.",
			s.Forwarded, "profile", profile)
		gauge(to, "sandboxd_egress_connections", "Connections that are open through the guard.",
			s.Connections, "profile", profile)
		gauge(to, "sandboxd_egress_containers", "Containers that have an address.", s.Containers,
			"profile", profile)
	}
	for name, s := range state.Budgets {
		gauge(to, "sandboxd_egress_budget_used",
			"What users' connections have of each budget (descriptors, hellos and buffers in bytes, ports); no user can take all of one.",
			s.Used, "budget", name)
		gauge(to, "sandboxd_egress_budget_limit",
			"All that users' connections may have of each budget; of ports, towards all destinations.",
			s.Total, "budget", name)
		counter(to, "sandboxd_egress_budget_refused_total",
			"Connections and requests that were refused because their user's part of a budget was used up.",
			s.Refused, "budget", name)
	}
}

func collectContainers(to scrape, s State) {
	type kind struct{ state, runtime string }
	containers := map[kind]int{}
	for _, found := range s.Containers {
		containers[kind{found.State, found.Runtime}]++
	}
	for kind, n := range containers {
		gauge(to, "sandboxd_containers",
			"Containers for execs, by state (starting, idle, frozen, busy) and runtime.", n,
			"state", kind.state, "runtime", kind.runtime)
	}
	counter(to, "sandboxd_container_freezes_total", "Times that an idle container was frozen.",
		s.Frozen)
	counter(to, "sandboxd_container_thaws_total",
		"Times that a frozen container was thawed for a call.", s.Thawed)
}

func collectPool(to scrape, pool sandbox.PoolStats) {
	gauge(to, "sandboxd_pool_containers", "Containers that wait for a new user.", pool.Ready)
	gauge(to, "sandboxd_pool_classes", "Kinds of first calls for which containers wait.",
		pool.Classes)
	off := 0
	if pool.Off != "" {
		off = 1
	}
	gauge(to, "sandboxd_pool_off",
		"1 when the pool has turned itself off, because the file system of usersDir cannot be used for it.",
		off)
	for _, outcome := range sandbox.PoolOutcomes {
		counter(to, "sandboxd_pool_first_calls_total",
			"First execs of users without a home, and sandboxes of E2B's clients, by what the pool was for them: hit, or why the container had to be made (empty: none waited; unlike: of a kind for which none do; failed).",
			pool.Asked[outcome], "outcome", outcome)
	}
	counter(to, "sandboxd_pool_refills_total", "Containers that were made for the pool.",
		pool.Refills)
	counter(to, "sandboxd_pool_refill_seconds_total", "Time that it took to make them.",
		pool.Refilling.Seconds())
}

func collectCluster(to scrape, s member.State) {
	gauge(to, "sandboxd_cluster_seats", "Users whom this host of a cluster holds.", s.Seats)
	gauge(to, "sandboxd_cluster_hosts", "Hosts that have a lease, as far as this one knows.",
		s.Hosts)
	gauge(to, "sandboxd_cluster_lease_left_seconds",
		"For how long this host may go on without hearing from etcd; 0 while it runs nothing.",
		s.Left.Seconds())
	counter(to, "sandboxd_cluster_forwarded_calls_total",
		"Calls that another host answered for this one.", s.Calls.Forwarded)
	counter(to, "sandboxd_cluster_forwarded_seconds_total", "Time until those answers began.",
		s.Calls.Took.Seconds())
	counter(to, "sandboxd_cluster_lost_calls_total",
		"Calls that were lost with the other host that was answering them.", s.Calls.Lost)
	counter(to, "sandboxd_cluster_takeovers_total", "Times that this host has taken a user over.",
		s.Calls.Taken)
	counter(to, "sandboxd_cluster_fences_total",
		"Times that this host has lost its lease and killed all that it ran, since it was switched on.",
		s.Fences)
	gauge(to, "sandboxd_cluster_unheld_users",
		"Users for whom a process or a deadline is due, but whom no host holds now.", s.Unheld)
	gauge(to, "sandboxd_cluster_lost_hosts",
		"Hosts that are gone and may still run something; with cluster.fenceCommand their users wait.",
		s.Lost)
}
