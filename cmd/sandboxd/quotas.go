package main

import (
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/quota"
)

// quotas are the bounds that the settings give.
func quotas(cfg config.Config) quota.Limits {
	all := cfg.Quotas.Total
	return quota.Limits{
		PerUser: quota.Bounds(cfg.Quotas.PerUser), PerToken: quota.Bounds(cfg.Quotas.PerToken),
		Total: quota.Bounds{
			Containers: all.Containers, ColdStarts: all.ColdStarts, Commands: all.Commands, DetachedExecs: all.DetachedExecs,
			Processes: all.Processes, ExposedPorts: all.ExposedPorts, Sandboxes: all.Sandboxes,
		},
	}
}
