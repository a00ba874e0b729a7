package dockerexec

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/quota"
)

// follow keeps the Executor's picture in line with Docker's: by Docker's events while they last, and by a look at
// everything whenever they begin again.
func (e *Executor) follow(processes processWatcher) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 100 * time.Millisecond
	wait.MaxInterval = 5 * time.Second
	for e.ctx.Err() == nil {
		happened, failed := e.engine.Events(e.ctx)
		again := e.compare(processes)
		if again == nil {
			wait.Reset()
		}
		e.consume(happened, failed, again, processes)
		select {
		case <-time.After(wait.NextBackOff()):
		case <-e.ctx.Done():
		}
	}
}

// compareAgain is how long after a comparison that has failed the next one is made, while Docker's events last.
const compareAgain = 5 * time.Second

// compare is reconcile for follow. After an error it returns when to try again.
func (e *Executor) compare(processes processWatcher) (again <-chan time.Time) {
	err := e.reconcile(e.ctx, processes.Lost)
	if err == nil || e.ctx.Err() != nil {
		return nil
	}
	e.cfg.Log.Warn().Err(err).Msg("cannot compare with Docker; trying again")
	return time.After(compareAgain)
}

// consume handles Docker's events until they end, and compares again when that is due.
func (e *Executor) consume(happened <-chan engine.Event, failed <-chan error, again <-chan time.Time, processes processWatcher) {
	for {
		select {
		case <-again:
			again = e.compare(processes)
		case event := <-happened:
			if event.Kind == engine.ImagesChanged {
				again = e.compare(processes)
			} else {
				e.heard(event, processes)
			}
		case err := <-failed:
			e.cfg.ImagesChanged() // whatever changes now goes unseen
			if e.ctx.Err() == nil {
				e.cfg.Log.Warn().Err(err).Msg("Docker's events have ended; following again")
			}
			return
		}
	}
}

// heard handles an event about a container.
func (e *Executor) heard(event engine.Event, processes processWatcher) {
	// A container that was disconnected has ended, or somebody did it by hand. It is of no use
	// without its network.
	e.ended(event.Container)
	if event.Kind == engine.Disconnected || event.Labels[labelInstance] != e.cfg.Instance {
		return
	}
	if event.Labels[labelGateway] != "" && event.Kind == engine.Ended {
		e.work.Go(e.mendNetworks)
	}
	process := event.Labels[labelProcess]
	if process != "" || event.Labels[labelLasting] != "" {
		e.processEnded(event.Container)
	}
	if process != "" {
		processes.Ended(process)
	}
}

// ended gives up a container that has died or been removed.
func (e *Executor) ended(id string) {
	e.mu.Lock()
	e.lost(id)
	remove := func() {}
	for _, c := range e.containers {
		if c.isSettled() && c.id == id {
			remove = e.forgotten(c) // before a call wakes one that sleeps
		}
	}
	e.mu.Unlock()
	remove()
}

// Reconcile looks at all containers of this instance. It adopts those that run, are current and are not known yet, and
// removes those that are stale, dead or unreadable, once they are no longer in use. Other containers are not even
// listed.
func (e *Executor) Reconcile(ctx context.Context) error { return e.reconcile(ctx, func() {}) }

// reconcile is Reconcile. It calls seen when all containers have been looked at. Without a platform, which is its error then, it
// does all the same what needs none: what runs is known, and nothing is taken for stale.
func (e *Executor) reconcile(ctx context.Context, seen func()) error {
	e.cfg.ImagesChanged()
	current, unknown := e.cfg.Platform(ctx)
	platform := &current
	if unknown != nil {
		platform = nil
	}
	if err := e.removeForsaken(ctx); err != nil { // first: it may have the names and subnets that are wanted
		e.cfg.Log.Warn().Err(err).Msg("cannot remove what this service made under an id that was lost")
	}
	e.mu.Lock()
	unheard := slices.AppendSeq(slices.Collect(maps.Keys(e.preparing)), maps.Keys(e.processes))
	for _, c := range e.containers {
		if c.sleeps() {
			unheard = append(unheard, c.id)
		}
	}
	e.mu.Unlock()
	listed, err := e.engine.List(ctx, true, labelInstance+"="+e.cfg.Instance)
	if err != nil {
		return e.engine.Explain(err)
	}
	e.loseMissing(unheard, listed)
	var adopted []*container
	for _, found := range listed {
		if found.Labels[labelGateway] != "" {
			if platform != nil {
				e.considerGateway(found, *platform)
			}
			continue
		}
		if c := e.consider(found, platform); c != nil {
			adopted = append(adopted, c)
		}
	}
	looked := e.looks()
	// Everything that will be kept is prepared before any of it can be given up: what one container no longer needs,
	// another may need.
	var preparing sync.WaitGroup
	for _, c := range adopted { // those whose storage is silent are waited for together
		preparing.Go(func() { _ = e.prepareMounts(c) }) // establish reports the error, too
	}
	preparing.Wait()
	if looked {
		e.readmit(ctx, adopted)
	}
	e.adopt(adopted)
	e.tidyPool(listed)
	seen()
	if unknown != nil {
		return unknown
	}
	e.retire(func(c *container) bool { return !c.platform().equal(current) })
	return e.removeUnusedTmp(ctx)
}

// looks notes that the maps have all containers of earlier services now, and reports whether they do: when the Executor is
// shutting down it takes none over.
func (e *Executor) looks() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.looked.Store(true)
	}
	return e.looked.Load()
}

// lookOnce compares with Docker if that has not succeeded yet, as after a start without Docker: until the containers of an
// earlier service are known, no network can be opened without cutting them off, and nothing can be done with a lasting one. It
// waits for Start.
func (e *Executor) lookOnce(ctx context.Context) error {
	if e.looked.Load() {
		return nil
	}
	select {
	case <-e.begun:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.ctx.Done():
		return errStopping
	}
	e.looking.Lock()
	defer e.looking.Unlock()
	if e.looked.Load() {
		return nil
	}
	err := e.Reconcile(ctx)
	switch {
	case e.looked.Load():
		return nil // what else has failed is tried again
	case err != nil:
		return fmt.Errorf("cannot find the containers that run already: %w", err)
	default:
		return errStopping
	}
}

// consider adds a container that is not in the map of its kind to it, for the caller to adopt, or has it removed. A pooled
// one belongs to no user yet, whatever kind it is to be. It may be bound meanwhile, so its kind and what is known of it
// are looked at together. A nil platform is not known.
func (e *Executor) consider(found engine.Container, platform *Platform) (adopted *container) {
	spec, err := specFromLabels(found.Labels)
	fingerprint := Fingerprint(found.Labels[labelFingerprint])
	e.mu.Lock()
	record, bound := e.bound[found.ID]
	pooled := !bound && Spec{User: found.Labels[labelUser]}.IsPooled()
	if !pooled && (found.Labels[labelProcess] != "" || found.Labels[labelLasting] != "") {
		e.mu.Unlock()
		return e.considerProcess(found)
	}
	known := e.containers[fingerprint] != nil || e.closed
	if bound {
		spec, fingerprint = record.Spec, record.Spec.Fingerprint()
		known = known || e.containers[fingerprint] != nil
	}
	tmp := tmpOf(found.Mounts)
	usable := err == nil && found.Runs() && (platform == nil || spec.Platform.equal(*platform)) && !spec.IsPooled() && (tmp == "" || tmp == spec.tmpName())
	if !known && usable {
		adopted = e.add(spec, fingerprint)
		e.foundAt(adopted, found)
		adopted.id, adopted.spool, adopted.paused = found.ID, spoolOf(found.Mounts), found.State == engine.Paused
		if adopted.frozen = adopted.paused; adopted.frozen {
			e.pauses.found(found.ID)
		}
		adopted.begun, adopted.give = true, e.cfg.Quotas.Hold(quota.Account{User: spec.User}, quota.Containers, 1)
		if bound {
			adopted.pool = e.poolFolder(record.Pooled)
			e.renameFound(adopted, found)
		}
	}
	e.mu.Unlock()
	if known || usable {
		return adopted
	}
	e.cfg.Log.Info().Str("container", found.ID[:12]).Str("state", string(found.State)).AnErr("labels", err).
		Msg("removing container: stale, stopped or unreadable")
	e.work.Go(func() { // a call that wants its name waits for it
		if err := e.removeFound(found.ID, spoolOf(found.Mounts)); err != nil {
			e.cfg.Log.Warn().Err(err).Msg("cannot remove container")
		}
	})
	return nil
}
