package main

import (
	"context"
	"fmt"
	"slices"
	"sync"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/cli/doctor"
	"github.com/daycare-run/sandbox/internal/cli/probes"
)

// look examines the host and returns a report.
type look = func(context.Context) (types.DoctorReport, error)

// oneAtATime refuses a call while another is in progress, because a look starts programs and
// queries resolvers.
func oneAtATime(look look) look {
	var looking sync.Mutex
	return func(ctx context.Context) (types.DoctorReport, error) {
		if !looking.TryLock() {
			return types.DoctorReport{},
				fmt.Errorf("the host is being checked already: try again in some seconds: %w",
					cerrdefs.ErrResourceExhausted)
		}
		defer looking.Unlock()
		return look(ctx)
	}
}

// doctorOf returns a look at the host for callers of the service.
func doctorOf(d *daemon) look {
	return oneAtATime(func(ctx context.Context) (types.DoctorReport, error) {
		cfg := *d.cfg.Load()
		checks, closeHost := probes.Host(
			&probes.Settings{Config: cfg, From: "those of the service"}, probeName())
		defer closeHost()
		report := types.DoctorReport{Findings: doctor.Run(ctx, checks,
			func(doctor.Finding) {}).Findings, Settings: []types.Setting{}}
		pending := d.service.Pending()
		for _, s := range cfg.Values() {
			report.Settings = append(report.Settings,
				types.Setting{Key: s.Key, Value: s.Text, Live: s.Live,
					Pending: slices.Contains(pending, s.Key)})
		}
		return report, ctx.Err()
	})
}
