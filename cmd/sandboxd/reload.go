package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// notifyReload returns the signals by which an operator asks to reload settings and tokens. A signal that arrives while
// the service starts is kept.
func notifyReload() (came chan os.Signal, stop func()) {
	came = make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGHUP)
	return came, func() { signal.Stop(came) }
}

// reloadWhenever reloads at each signal until ctx ends.
func (d *daemon) reloadWhenever(ctx context.Context, asked <-chan os.Signal) {
	for {
		select {
		case <-asked:
			d.reload(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// reload reads the settings again and applies what can change without a restart; it logs the rest. Settings with any
// fault change nothing. The tokens are read even then, because one may have to be revoked at once.
func (d *daemon) reload(ctx context.Context) {
	noTokens := d.reloadTokens()
	next, err := d.consider(ctx)
	if err == nil {
		err = d.apply(next)
	}
	d.loaded.Refused, d.loaded.TokensRefused = err != nil, noTokens != nil
	d.metrics.reloaded(d.loaded)
	d.service.SetLoaded(d.loaded)
	if err != nil {
		d.log.Error().Err(err).Msg("the settings were read again and cannot be used; nothing has changed")
		return
	}
	d.log.Info().Strs("changed", next.changed).Msg("the settings were read again")
	if len(next.pending) > 0 {
		d.log.Warn().Strs("keys", next.pending).Msg("these settings have changed, too, and need a restart; the running values stay")
	}
	// Containers that the new settings would not make are given up when nobody uses them.
	if err := d.executor.Reconcile(ctx); err != nil && ctx.Err() == nil {
		d.log.Warn().Err(err).Msg("cannot compare containers with the new settings yet")
	}
}

// reloadTokens reads the tokens again. They apply to new requests; of the requests in progress, those that only follow
// something end if their token is gone. If any token has a fault, the old tokens stay.
func (d *daemon) reloadTokens() error {
	next, err := readTokens(*d.cfg.Load())
	if err != nil {
		d.log.Error().Err(err).Msg("the tokens were read again and cannot be used; those from before stay in force")
		return err
	}
	if next != nil {
		gone, come := d.tokens.Use(next)
		d.log.Info().Strs("gone", gone).Strs("new", come).Msg("the tokens were read again")
	}
	return nil
}

// reloadResult is the outcome of reading the settings again.
type reloadResult struct {
	cfg      config.Config // as it will be in force
	rules    policy.EgressRules
	platform sandbox.PlatformConfig
	// changed and pending are keys: those that take effect now, and those that need a restart.
	changed, pending []string
}

// consider reads the settings and checks whether they can be used. It changes nothing.
func (d *daemon) consider(ctx context.Context) (next reloadResult, err error) {
	read, err := d.read()
	if err != nil {
		return next, err
	}
	if next.cfg, next.changed, next.pending, err = d.cfg.Load().Next(read); err != nil {
		return next, err
	}
	if next.rules, err = egressRules(next.cfg); err != nil {
		return next, err
	}
	if next.platform, err = d.platformConfig(next.cfg); err != nil {
		return next, err
	}
	// Docker or a missing image may appear by itself; a runtime does not.
	if _, err := sandbox.NewPlatforms(next.platform).Current(ctx); cerrdefs.IsNotImplemented(err) {
		return next, fmt.Errorf("docker.runtime: %w", err)
	}
	return next, nil
}

// apply puts the new settings in force. It begins with the steps that may fail.
func (d *daemon) apply(r reloadResult) error {
	next := r.cfg
	if slices.Contains(r.changed, "docker.isolatedDnsServers") || slices.Contains(r.changed, "docker.localDnsServers") {
		if err := d.networks.SetUpstreams(upstreams(next)); err != nil {
			return err
		}
	}
	d.cfg.Store(&next)
	d.loaded = sandbox.Loaded{At: time.Now().UTC(), Pending: r.pending}
	d.logs.use(next.Log)
	d.platforms.Use(r.platform)
	d.quotas.Use(quotas(next, runtime.NumCPU()))
	d.rootfs.Use(d.rootfsSettings(next))
	d.resolver.Use(d.callSettings(next, r.rules))
	d.executor.SetIdle(idle(next))
	d.executor.SetAhead(next.Exec.Ahead > 0)
	d.pool.Use(poolSettings(next))
	d.processes.SetBounds(processBounds(next))
	d.ports.SetRange(exposable(next))
	d.runner.SetMaxLog(int64(next.Processes.MaxLog))
	return nil
}
