package main

import "github.com/daycare-run/sandbox/internal/metrics"

// State implements metrics.Source.
func (d *daemon) State() metrics.State {
	frozen, thawed := d.warm.Freezes()
	s := metrics.State{
		Decisions: d.decisions.Totals(), Networks: d.networks.Stats(),
		Budgets: d.networks.Budgets(), Connections: d.connections.Stats(),
		Containers: d.warm.Containers(), Frozen: frozen, Thawed: thawed,
		Processes: d.processes.Stats(), Quotas: d.quotas.Stats(), Pool: d.pool.Stats(),
	}
	if d.member != nil {
		cluster := d.member.State()
		s.Cluster = &cluster
	}
	return s
}
