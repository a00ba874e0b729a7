package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/daycare-run/sandbox/internal/cluster/forward"
)

var (
	clusterSeats = prometheus.NewDesc("sandboxd_cluster_seats",
		"Users whom this host of a cluster holds.", nil, nil)
	clusterHosts = prometheus.NewDesc("sandboxd_cluster_hosts",
		"Hosts that have a lease, as far as this one knows.", nil, nil)
	clusterLease = prometheus.NewDesc("sandboxd_cluster_lease_left_seconds",
		"For how long this host may go on without hearing of etcd; 0 while it runs nothing.", nil, nil)
	clusterForwarded = prometheus.NewDesc("sandboxd_cluster_forwarded_calls_total",
		"Calls that another host answered for this one.", nil, nil)
	clusterTook = prometheus.NewDesc("sandboxd_cluster_forwarded_seconds_total",
		"Time until those answers began.", nil, nil)
	clusterLost = prometheus.NewDesc("sandboxd_cluster_lost_calls_total",
		"Calls that another host was to answer and was lost meanwhile.", nil, nil)
	clusterTaken = prometheus.NewDesc("sandboxd_cluster_takeovers_total",
		"Times that this host has taken a user over.", nil, nil)
	clusterFences = prometheus.NewDesc("sandboxd_cluster_fences_total",
		"Times that this host has lost its lease and killed all that it ran, since it was switched on.", nil, nil)
	clusterUnheld = prometheus.NewDesc("sandboxd_cluster_unheld_users",
		"Users whose processes are to run and whom no host holds now.", nil, nil)
	clusterUnfenced = prometheus.NewDesc("sandboxd_cluster_lost_hosts",
		"Hosts that are gone and of which it is not known that nothing runs; with cluster.fenceCommand their users wait.", nil, nil)
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

// clusterCollector reads it at the time of the scrape.
type clusterCollector func() clusterState

// Describe implements prometheus.Collector.
func (clusterCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		clusterSeats, clusterHosts, clusterLease, clusterForwarded, clusterTook, clusterLost, clusterTaken, clusterFences, clusterUnheld, clusterUnfenced,
	} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c clusterCollector) Collect(to chan<- prometheus.Metric) {
	s := c()
	tell := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64) {
		to <- prometheus.MustNewConstMetric(desc, kind, value)
	}
	tell(clusterSeats, prometheus.GaugeValue, float64(s.seats))
	tell(clusterHosts, prometheus.GaugeValue, float64(s.hosts))
	tell(clusterLease, prometheus.GaugeValue, s.left.Seconds())
	tell(clusterForwarded, prometheus.CounterValue, float64(s.calls.Forwarded))
	tell(clusterTook, prometheus.CounterValue, s.calls.Took.Seconds())
	tell(clusterLost, prometheus.CounterValue, float64(s.calls.Lost))
	tell(clusterTaken, prometheus.CounterValue, float64(s.calls.Taken))
	tell(clusterFences, prometheus.CounterValue, float64(s.fences))
	tell(clusterUnheld, prometheus.GaugeValue, float64(s.unheld))
	tell(clusterUnfenced, prometheus.GaugeValue, float64(s.lost))
}
