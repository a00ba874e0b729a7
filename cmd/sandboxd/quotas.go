package main

import (
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/quota"
)

// quotas are the bounds that the settings give.
func quotas(cfg config.Config) quota.Limits {
	bounds := func(q config.Quota) quota.Bounds {
		return quota.Bounds{
			Containers: q.Containers, ColdStarts: q.ColdStarts, Commands: q.Commands, DetachedExecs: q.DetachedExecs,
			Processes: q.Processes, ExposedPorts: q.ExposedPorts, Sandboxes: q.Sandboxes, Calls: q.Calls, RequestsPerSecond: q.RequestsPerSecond,
		}
	}
	return quota.Limits{
		PerUser: bounds(cfg.Quotas.PerUser), PerToken: bounds(cfg.Quotas.PerToken), Total: bounds(config.Quota{TotalQuota: cfg.Quotas.Total}),
	}
}
