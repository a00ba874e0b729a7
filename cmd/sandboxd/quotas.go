package main

import (
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/quota"
)

// quotas are the bounds that the settings give.
func quotas(cfg config.Config) quota.Limits {
	bounds := func(q config.TotalQuota, requests int) quota.Bounds {
		return quota.Bounds{
			Containers: q.Containers, ColdStarts: q.ColdStarts, Commands: q.Commands, DetachedExecs: q.DetachedExecs,
			Processes: q.Processes, ExposedPorts: q.ExposedPorts, Sandboxes: q.Sandboxes, RequestsPerSecond: requests,
		}
	}
	user, token := cfg.Quotas.PerUser, cfg.Quotas.PerToken
	return quota.Limits{
		PerUser: bounds(user.TotalQuota, user.RequestsPerSecond), PerToken: bounds(token.TotalQuota, token.RequestsPerSecond),
		Total: bounds(cfg.Quotas.Total, 0),
	}
}
