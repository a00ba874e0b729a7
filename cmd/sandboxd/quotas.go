package main

import (
	"cmp"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/quota"
)

// maxColdStarts is how many containers are made at a time on a host of any size, unless the
// settings say more.
const maxColdStarts = 32

// spareTurns is how many containers that no call waits for are made at a time: each start keeps about
// one processor busy, and half of them are left to calls, as half of all turns are.
func spareTurns(cfg config.Config, processors int) int {
	return max(min(processors, coldStarts(cfg, processors))/2, 1)
}

// coldStarts is how many containers are made at a time. Of 1 to 8 on two processors, 4 served the last
// of 40 users soonest, under both runsc and runc.
func coldStarts(cfg config.Config, processors int) int {
	return cmp.Or(cfg.Quotas.Total.ColdStarts, min(2*processors, maxColdStarts))
}

// quotas returns the configured limits for a host with this many processors.
func quotas(cfg config.Config, processors int) quota.Limits {
	bounds := func(q config.Quota) quota.Bounds {
		return quota.Bounds{
			Containers: q.Containers, ColdStarts: q.ColdStarts, Commands: q.Commands,
			DetachedExecs: q.DetachedExecs, Processes: q.Processes, ExposedPorts: q.ExposedPorts,
			Sandboxes: q.Sandboxes, Calls: q.Calls, RequestsPerSecond: q.RequestsPerSecond,
		}
	}
	total := cfg.Quotas.Total
	total.ColdStarts = coldStarts(cfg, processors)
	return quota.Limits{
		PerUser: bounds(cfg.Quotas.PerUser), PerToken: bounds(cfg.Quotas.PerToken),
		Total: bounds(config.Quota{TotalQuota: total}), SpareTurns: spareTurns(cfg, processors),
	}
}
