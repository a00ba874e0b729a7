package main

import (
	"context"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/process"
	"github.com/daycare-run/sandbox/sandbox"
)

// openProcesses reads the records of durable processes. What runs is found when the executor starts.
func openProcesses(cfg config.Config, service *sandbox.Service, executor *dockerexec.Executor, log zerolog.Logger) (*process.Manager, error) {
	boot, err := process.HostBootID()
	if err != nil {
		return nil, err
	}
	p := cfg.Processes
	runner := sandbox.NewRunner(service, executor, int64(p.MaxLog))
	return process.Open(process.Config{
		Dir: filepath.Join(cfg.DataDir, "processes"), Runner: runner, LogDir: runner.Dir, Clock: process.SystemClock{}, BootID: boot,
		StopGrace: p.StopGrace.Duration(), MaxPerUser: p.MaxPerUser, MaxTotal: p.MaxTotal, Log: log,
	})
}

// endProcesses leaves the processes running.
func endProcesses(m *process.Manager, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownLimit)
	defer cancel()
	if err := m.Shutdown(ctx); err != nil {
		log.Warn().Err(err).Msg("what was being done to processes is not waited for")
	}
}
