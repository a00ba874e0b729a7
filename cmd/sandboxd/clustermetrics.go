package main

import (
	"time"

	"github.com/daycare-run/sandbox/internal/cluster/forward"
)

// clusterState is what a host knows of itself as a member of the cluster.
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

func (s clusterState) collect(to scrape) {
	gauge(to, "sandboxd_cluster_seats", "Users whom this host of a cluster holds.", s.seats)
	gauge(to, "sandboxd_cluster_hosts", "Hosts that have a lease, as far as this one knows.", s.hosts)
	gauge(to, "sandboxd_cluster_lease_left_seconds", "For how long this host may go on without hearing from etcd; 0 while it runs nothing.", s.left.Seconds())
	counter(to, "sandboxd_cluster_forwarded_calls_total", "Calls that another host answered for this one.", s.calls.Forwarded)
	counter(to, "sandboxd_cluster_forwarded_seconds_total", "Time until those answers began.", s.calls.Took.Seconds())
	counter(to, "sandboxd_cluster_lost_calls_total", "Calls that were lost with the other host that was answering them.", s.calls.Lost)
	counter(to, "sandboxd_cluster_takeovers_total", "Times that this host has taken a user over.", s.calls.Taken)
	counter(to, "sandboxd_cluster_fences_total", "Times that this host has lost its lease and killed all that it ran, since it was switched on.", s.fences)
	gauge(to, "sandboxd_cluster_unheld_users", "Users whose processes should run, but whom no host holds now.", s.unheld)
	gauge(to, "sandboxd_cluster_lost_hosts", "Hosts that are gone and may still run something; with cluster.fenceCommand their users wait.", s.lost)
}
