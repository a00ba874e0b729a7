package main

import (
	"context"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// openProcesses reads the records of durable processes. What runs is found when the executor starts.
func openProcesses(cfg config.Config, quotas *quota.Ledger, runner *sandbox.Runner, ports *process.Listeners, log zerolog.Logger) (*process.Manager, error) {
	boot, err := process.HostBootID()
	if err != nil {
		return nil, err
	}
	return process.Open(process.Config{
		Dir: filepath.Join(cfg.DataDir, "processes"), Runner: runner, LogDir: runner.Dir, Discard: runner.Discard, Clock: process.SystemClock{}, BootID: boot, Ports: ports,
		Quotas: quotas, Bounds: processBounds(cfg), Log: log,
	})
}

func processBounds(cfg config.Config) process.Bounds {
	return process.Bounds{StopGrace: cfg.Processes.StopGrace.Duration()}
}

func exposable(cfg config.Config) process.PortRange {
	return process.PortRange(cfg.Processes.ExposePorts)
}

// endProcesses leaves the processes running.
func endProcesses(m *process.Manager, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	if err := m.Shutdown(ctx); err != nil {
		log.Warn().Err(err).Msg("what was being done to processes is not waited for")
	}
}
