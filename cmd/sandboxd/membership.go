package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cluster/member"
	"github.com/daycare-run/sandbox/internal/engine"
)

// openCluster makes this host a member of a cluster if one is configured.
func (d *daemon) openCluster(ctx context.Context, cfg config.Config) (err error) {
	if !cfg.Cluster.On() {
		return nil
	}
	if d.membership, err = member.Open(cfg, d.host.instance, d.events, d.log); err != nil {
		return err
	}
	d.onClose(d.membership.Close)
	info, err := engine.NewDocker(d.docker).Info(ctx)
	if err != nil {
		return fmt.Errorf(
			"cannot learn how Docker manages control groups, which the fence needs to know: %w",
			err)
	}
	if d.cgroupParent = string(member.FenceGroup(cfg)); info.Systemd {
		d.cgroupParent = strings.TrimPrefix(d.cgroupParent, "/")
	}
	return nil
}
