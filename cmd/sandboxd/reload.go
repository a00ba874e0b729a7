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
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/policy"
	"github.com/daycare-run/sandbox/internal/sandbox"
)

// notifyReload returns the signals by which an operator asks to reload settings and tokens. A
// signal that arrives while the service starts is kept.
func notifyReload() (came chan os.Signal, stop func()) {
	came = make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGHUP)
	return came, func() { signal.Stop(came) }
}

// reloadWhenever reads the tokens and then the settings again at each signal, until ctx ends. The
// tokens do not wait for settings that are still being read, which can take as long as Docker does
// not answer: one may have to be revoked at once.
func (d *daemon) reloadWhenever(ctx context.Context, asked <-chan os.Signal) {
	settings := make(chan struct{}, 1)
	defer inBackground(ctx, func(ctx context.Context) {
		for {
			select {
			case <-settings:
				d.reload(ctx)
			case <-ctx.Done():
				return
			}
		}
	})()
	for {
		select {
		case <-asked:
			err := d.reloadTokens()
			d.note(func(l *sandbox.Loaded) { l.TokensRefused = err != nil })
			select {
			case settings <- struct{}{}:
			default: // they are to be read once more already
			}
		case <-ctx.Done():
			return
		}
	}
}

// note changes what the service says about the last reload, and returns it.
func (d *daemon) note(change func(*sandbox.Loaded)) sandbox.Loaded {
	d.loading.Lock()
	defer d.loading.Unlock()
	change(&d.loaded)
	d.service.SetLoaded(d.loaded)
	return d.loaded
}

// reload reads the settings again and applies what can change without a restart; it logs the rest.
// Settings with any fault change nothing.
func (d *daemon) reload(ctx context.Context) {
	next, err := d.consider(ctx)
	if err == nil {
		err = d.apply(next)
	}
	d.metrics.Reloaded(d.note(func(l *sandbox.Loaded) {
		if l.Refused = err != nil; err == nil {
			l.At, l.Pending = time.Now().UTC(), next.pending
		}
	}))
	if err != nil {
		if ctx.Err() != nil { // the service is stopping
			return
		}
		d.log.Error().Err(err).
			Msg("the settings were read again and cannot be used; nothing has changed")
		return
	}
	d.log.Info().Strs("changed", next.changed).Msg("the settings were read again")
	if len(next.pending) > 0 {
		d.log.Warn().Strs("keys", next.pending).
			Msg("these settings have changed, too, and need a restart; the running values stay")
	}
	// Containers that the new settings would not make are given up when nobody uses them.
	if err := d.executor.Reconcile(ctx); err != nil && ctx.Err() == nil {
		d.log.Warn().Err(err).Msg("cannot compare containers with the new settings yet")
	}
}

// reloadTokens reads the tokens again. They apply to new requests; of the requests in progress,
// those that only follow something end if their token is gone. If any token has a fault, the old
// tokens stay.
func (d *daemon) reloadTokens() error {
	next, err := readTokens(*d.cfg.Load())
	if err != nil {
		d.log.Error().Err(err).
			Msg("the tokens were read again and cannot be used; those from before stay in force")
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
	platform plan.PlatformConfig
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
	if err := d.awaitDocker(ctx, next.platform); err != nil {
		return next, err
	}
	// A missing image may appear by itself; a runtime does not.
	if _, err := plan.NewPlatforms(next.platform).Current(ctx); cerrdefs.IsNotImplemented(err) {
		return next, fmt.Errorf("docker.runtime: %w", err)
	}
	return next, nil
}

// askDockerAgain is the pause before Docker, which has not answered, is asked again.
const askDockerAgain = time.Second

// awaitDocker waits until Docker answers: before that nobody knows whether settings can be used.
func (d *daemon) awaitDocker(ctx context.Context, platform plan.PlatformConfig) error {
	for said := false; ; said = true {
		_, err := platform.Inspect(ctx)
		if err == nil {
			return nil
		}
		if !said && ctx.Err() == nil {
			d.log.Warn().Err(err).
				Msg("the settings were read again, and take effect when Docker answers")
		}
		select {
		case <-time.After(askDockerAgain):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// apply puts the new settings in force. It begins with the steps that may fail.
func (d *daemon) apply(r reloadResult) error {
	next := r.cfg
	if slices.Contains(r.changed, "docker.isolatedDnsServers") ||
		slices.Contains(r.changed, "docker.localDnsServers") {
		if err := d.networks.SetUpstreams(upstreams(next)); err != nil {
			return err
		}
	}
	d.cfg.Store(&next)
	d.logs.use(next.Log)
	d.platforms.Use(r.platform)
	d.trustOrigins(r.platform.Certificates)
	d.quotas.Use(quotas(next, runtime.NumCPU()))
	d.rootfs.Use(d.rootfsSettings(next))
	d.planner.Use(d.planSettings(next, r.rules))
	d.service.Use(d.callSettings(next))
	d.warm.SetIdle(idle(next))
	d.persistent.SetFreezeAfter(time.Duration(next.Idle.FreezeAfter))
	d.persistent.Registered("") // what the settings allow may be less
	d.executor.SetAhead(next.Exec.Ahead > 0)
	d.pool.Use(poolSettings(next))
	d.templates.Use(templates(next.E2B))
	d.processes.SetBounds(processBounds(next))
	d.ports.SetRange(exposable(next))
	d.runner.SetMaxLog(int64(next.Processes.MaxLog))
	return nil
}
