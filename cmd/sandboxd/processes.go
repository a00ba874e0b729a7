package main

import (
	"context"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/workload/process"
)

// openProcesses reads the records of durable processes. Those that run are found when the executor
// starts.
func (d *daemon) openProcesses(cfg config.Config) error {
	boot, err := process.HostBootID()
	if err != nil {
		return err
	}
	shared, keyFile := process.Shared(nil), ""
	if d.membership != nil {
		shared, keyFile = d.membership.Processes(), cfg.Cluster.SealingKeyFile
		boot += "@" + cfg.Cluster.Name // hosts in a lab share one kernel
	}
	d.processes, err = process.Open(process.Config{
		Shared: shared, KeyFile: keyFile,
		Dir: filepath.Join(cfg.DataDir, "processes"), Runner: d.runner, Sandboxes: d.registry,
		Clock: process.SystemClock{}, BootID: boot, Ports: d.ports, Quotas: d.quotas,
		Bounds: processBounds(cfg), Events: d.events, Log: d.log,
	})
	if err == nil {
		d.onClose(func() { endProcesses(d.processes, d.log) })
	}
	return err
}

func processBounds(cfg config.Config) process.Bounds {
	return process.Bounds{StopGrace: cfg.Processes.StopGrace.Duration()}
}

func exposable(cfg config.Config) process.PortRange {
	return process.PortRange(cfg.Processes.ExposePorts)
}

// endProcesses shuts the process manager down and leaves the processes running.
func endProcesses(m *process.Manager, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	if err := m.Shutdown(ctx); err != nil {
		log.Warn().Err(err).
			Msg("changes to processes are still in progress; they are not waited for")
	}
}
