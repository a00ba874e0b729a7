package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/daycare-run/sandbox/internal/cluster/forward"
)

// clusterState is what a host knows of itself as one of several.
type clusterState struct {
	seats, hosts, fences int
	unheld, lost         int
	left                 time.Duration
	calls                forward.Counts
}

func (m *member) state() clusterState {
	return clusterState{
		seats: len(m.cluster.Seated()), hosts: len(m.cluster.Nodes()), fences: m.fence.Record().Fences, left: max(m.fence.Left(), 0),
		calls: m.router.Counts(), unheld: len(m.unheld()), lost: len(m.cluster.Lost()),
	}
}

// clusterMetrics are what is told of it, each after "sandboxd_cluster_".
var clusterMetrics = []struct {
	name  string
	kind  prometheus.ValueType
	help  string
	value func(clusterState) float64
}{
	{"seats", prometheus.GaugeValue, "Users whom this host of a cluster holds.", func(s clusterState) float64 { return float64(s.seats) }},
	{"hosts", prometheus.GaugeValue, "Hosts that have a lease, as far as this one knows.", func(s clusterState) float64 { return float64(s.hosts) }},
	{"lease_left_seconds", prometheus.GaugeValue, "For how long this host may go on without hearing of etcd; 0 while it runs nothing.",
		func(s clusterState) float64 { return s.left.Seconds() }},
	{"forwarded_calls_total", prometheus.CounterValue, "Calls that another host answered for this one.",
		func(s clusterState) float64 { return float64(s.calls.Forwarded) }},
	{"forwarded_seconds_total", prometheus.CounterValue, "Time until those answers began.", func(s clusterState) float64 { return s.calls.Took.Seconds() }},
	{"lost_calls_total", prometheus.CounterValue, "Calls that another host was to answer and was lost meanwhile.",
		func(s clusterState) float64 { return float64(s.calls.Lost) }},
	{"takeovers_total", prometheus.CounterValue, "Times that this host has taken a user over.", func(s clusterState) float64 { return float64(s.calls.Taken) }},
	{"fences_total", prometheus.CounterValue, "Times that this host has lost its lease and killed all that it ran, since it was switched on.",
		func(s clusterState) float64 { return float64(s.fences) }},
	{"unheld_users", prometheus.GaugeValue, "Users whose processes are to run and whom no host holds now.",
		func(s clusterState) float64 { return float64(s.unheld) }},
	{"lost_hosts", prometheus.GaugeValue, "Hosts that are gone and of which it is not known that nothing runs; with cluster.fenceCommand their users wait.",
		func(s clusterState) float64 { return float64(s.lost) }},
}

// clusterCollector reads it at the time of the scrape.
type clusterCollector func() clusterState

// Describe implements prometheus.Collector.
func (c clusterCollector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements prometheus.Collector.
func (c clusterCollector) Collect(to chan<- prometheus.Metric) {
	s := c()
	for _, m := range clusterMetrics {
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("sandboxd_cluster_"+m.name, m.help, nil, nil), m.kind, m.value(s))
	}
}
