package main

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/cluster/member"
	"github.com/daycare-run/sandbox/internal/httplog"
)

// serve runs the service until ctx ends. read reads the settings again.
func serve(ctx context.Context, cfg config.Config, read func() (config.Config, error),
	to io.Writer) error {
	hungUp, ignore := notifyReload()
	defer ignore()
	logs, log := newLogs(cfg.Log, to)
	httplog.UseForStandard(log)
	d, err := openDaemon(ctx, cfg, read, logs, log)
	if err != nil {
		return err
	}
	defer d.close()
	if d.membership != nil {
		d.member = d.membership.Start(context.WithoutCancel(ctx), member.Parts{
			Docker: d.docker, Executor: d.executor, Registry: d.registry,
			Processes: d.processes, Persistent: d.persistent,
		})
		defer d.member.Shutdown()
	}
	d.executor.Start(ctx, gate{d})
	d.warm.Start()
	// Also while persistent sandboxes are looked for, which may take long, and while the service
	// waits for commands to end:
	defer inBackground(context.WithoutCancel(ctx), d.watchMounts)()
	defer inBackground(context.WithoutCancel(ctx), d.followContainers)()
	d.persistent.Start(ctx)
	defer inBackground(ctx, d.pool.Fill)()
	defer inBackground(ctx, func(ctx context.Context) { d.reloadWhenever(ctx, hungUp) })()
	return d.answer(ctx, cfg)
}

// watchMounts expels containers in which something hidden would become visible, until ctx ends.
func (d *daemon) watchMounts(ctx context.Context) {
	const again = 10 * time.Second
	for ctx.Err() == nil {
		if err := d.mounts.Watch(ctx, d.executor.Expel); err != nil {
			d.log.Error().Err(err).
				Msg("hidden paths are not watched: calls that rest on that are refused; trying again")
			select {
			case <-time.After(again):
			case <-ctx.Done():
			}
		}
	}
}

// inBackground runs work until stop is called. stop waits for its end.
func inBackground(ctx context.Context, work func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { work(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}
