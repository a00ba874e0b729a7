package dockerexec

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/daycare-run/sandbox/dockerexec/life"
	"github.com/daycare-run/sandbox/internal/engine"
	"github.com/daycare-run/sandbox/internal/quota"
)

// followDocker keeps the Executor's picture in line with Docker's: by Docker's events while they
// last, and by a look at everything whenever they begin again.
func (e *Executor) followDocker() {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval = 100 * time.Millisecond
	wait.MaxInterval = 5 * time.Second
	for e.ctx.Err() == nil {
		happened, failed := e.engine.Events(e.ctx)
		again := e.compare()
		if again == nil {
			wait.Reset()
		}
		e.consume(happened, failed, again)
		select {
		case <-time.After(wait.NextBackOff()):
		case <-e.ctx.Done():
		}
	}
}

// compareAgain is how long after a comparison that has failed the next one is made, while Docker's
// events last.
const compareAgain = 5 * time.Second

// compare is Reconcile for followDocker. After an error it returns when to try again.
func (e *Executor) compare() (again <-chan time.Time) {
	err := e.Reconcile(e.ctx)
	if err == nil || e.ctx.Err() != nil {
		return nil
	}
	e.cfg.Log.Warn().Err(err).Msg("cannot compare with Docker; trying again")
	return time.After(compareAgain)
}

// consume handles Docker's events until they end, and compares again when that is due.
func (e *Executor) consume(
	happened <-chan engine.Event, failed <-chan error, again <-chan time.Time,
) {
	for {
		select {
		case <-again:
			again = e.compare()
		case event := <-happened:
			if event.Kind == engine.ImagesChanged {
				again = e.compare()
			} else {
				e.heard(event)
			}
		case err := <-failed:
			e.cfg.Platforms.Forget() // whatever changes now goes unseen
			if e.ctx.Err() == nil {
				e.cfg.Log.Warn().Err(err).Msg("Docker's events have ended; following again")
			}
			return
		}
	}
}

// heard handles an event about a container.
func (e *Executor) heard(event engine.Event) {
	if event.Kind == engine.Resumed {
		if c := e.known(event.Container); c != nil {
			c.Resumed()
		}
		return
	}
	if event.Kind == engine.Disconnected {
		e.disconnected(event.Container)
		return
	}
	e.died(event.Container)
	if event.Labels[labelInstance] != e.cfg.Instance {
		return
	}
	if event.Labels[labelGateway] != "" && event.Kind == engine.Ended {
		e.mendSoon()
	}
	if process := event.Labels[labelProcess]; process != "" {
		e.changes.tell(Changes{Ended: map[string]bool{process: true}})
	}
}

// disconnected removes a container that was taken off its network, which has ended, or somebody did
// it by hand: without its network it is of no use. A detached one goes on.
func (e *Executor) disconnected(id string) {
	e.mu.Lock()
	c := e.ids[id]
	e.mu.Unlock()
	switch {
	case c == nil:
	case !c.spec.isDetached():
		e.Lose(c)
	case c.is(life.Starting):
		e.work.Go(func() { // Docker tells of that before it tells of an end
			now, err := e.InspectProcess(e.ctx, id)
			switch {
			case cerrdefs.IsNotFound(err) || err == nil && !now.Running:
				e.Lose(c)
			default: // once it has been made it goes on
				c.Do(life.Abort, ErrLost)
			}
		})
	}
}

// Reconcile looks at all containers of this instance. It adopts those that run, are current and are
// not known yet, and removes those that are stale, dead or unreadable, once they are no longer in
// use. Other containers are not even listed. Without a platform, which is its error then, it does
// all the same what needs none: what runs is known, and nothing is taken for stale.
func (e *Executor) Reconcile(ctx context.Context) error {
	e.cfg.Platforms.Forget()
	current, unknown := e.cfg.Platforms.Current(ctx)
	platform := &current
	if unknown != nil {
		platform = nil
	}
	// first: it may have the names and subnets that are wanted
	if err := e.removeOrphans(ctx); err != nil {
		e.cfg.Log.Warn().Err(err).Msg(
			"cannot remove what this service made under an id that was lost")
	}
	before := e.unended()
	listed, err := e.engine.List(ctx, true, labelInstance+"="+e.cfg.Instance)
	if err != nil {
		return e.engine.Explain(err)
	}
	e.loseMissing(before, listed)
	e.mendPauses(listed)
	var adopted []*Container
	for _, found := range listed {
		if found.Labels[labelGateway] != "" {
			if platform != nil {
				e.retireGateway(ctx, found, *platform)
			}
			continue
		}
		if c := e.consider(found, platform); c != nil {
			adopted = append(adopted, c)
		}
	}
	complete := e.isReconciled()
	// Everything that will be kept is prepared before any of it can be given up: what one container
	// no longer needs, another may need.
	var preparing sync.WaitGroup
	for _, c := range adopted { // those whose storage is silent are waited for together
		// its maker reports the error, too
		preparing.Go(func() { _ = c.mounts.prepare(e.cfg.Mounts, c.spec) })
	}
	preparing.Wait()
	if complete && len(adopted) > 0 {
		e.checkNetworks(ctx)
	}
	e.adopt(adopted)
	e.tidyPool(listed)
	e.changes.tell(Changes{Compared: true})
	if unknown != nil {
		return unknown
	}
	e.Retire(func(c *Container, _ life.Now) bool { return !c.on.equal(current) })
	return e.removeUnusedTmp(ctx)
}

// isReconciled notes that the registry has all containers of earlier services now, and reports
// whether it does: at Shutdown none is taken over.
func (e *Executor) isReconciled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.reconciled.Store(true)
	}
	return e.reconciled.Load()
}

// unended returns the containers that Docker's list must have.
func (e *Executor) unended() map[string]*Container {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.ids)
}

// loseMissing has those containers end that do not run according to Docker's list, which was made
// after them.
func (e *Executor) loseMissing(before map[string]*Container, listed []engine.Container) {
	for _, found := range listed {
		if found.State != specs.StateStopped && found.State != engine.Removing {
			delete(before, found.ID)
		}
	}
	for _, c := range before {
		e.Lose(c)
	}
}

// mendPauses has those paused, or go on, that Docker has otherwise than it should: somebody did
// that, or Docker went down meanwhile. One that was found paused is resumed by whoever takes it
// over.
func (e *Executor) mendPauses(listed []engine.Container) {
	for _, found := range listed {
		e.mu.Lock()
		c := e.ids[found.ID]
		e.mu.Unlock()
		if c == nil || !found.Runs() ||
			!c.is(life.Starting, life.Ready, life.Draining, life.Frozen) ||
			!c.Seen(found.State == engine.Paused) || c.foundPaused && c.is(life.Starting) {
			continue
		}
		e.work.Go(func() {
			if err := c.Mend(e.ctx); err != nil && e.ctx.Err() == nil {
				e.Tell(e.ctx, c,
					Incident{What: "cannot pause or resume a container as it should be", Err: err})
			}
		})
	}
}

// reconcileOnce compares with Docker if that has not succeeded yet, as after a start without
// Docker: until the containers of an earlier service are known, no network can be opened without
// cutting them off, and nothing can be done with a persistent one. It waits for Start.
func (e *Executor) reconcileOnce(ctx context.Context) error {
	if e.reconciled.Load() {
		return nil
	}
	select {
	case <-e.begun:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.ctx.Done():
		return ErrStopping
	}
	e.reconciling.Lock()
	defer e.reconciling.Unlock()
	if e.reconciled.Load() {
		return nil
	}
	err := e.Reconcile(ctx)
	switch {
	case e.reconciled.Load():
		return nil // what else has failed is tried again
	case err != nil:
		return fmt.Errorf("cannot find the containers that run already: %w", err)
	default:
		return ErrStopping
	}
}

// consider registers a container that this service does not know, for the caller to adopt, or has
// it removed. A pooled one belongs to no user yet, whatever kind it is to be. It may be bound
// meanwhile, so what is known of it is looked at together. A nil platform is not known.
func (e *Executor) consider(found engine.Container, platform *Platform) (adopted *Container) {
	e.mu.Lock()
	spec, fingerprint, err := e.specOf(found)
	e.mu.Unlock()
	reach := spec.Egress
	if err == nil && spec.isDetached() && spec.Persistent != "" {
		reach = e.reachOf(spec) // before e.mu is held: who answers may be waiting for it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.knows(found.ID) {
		return nil
	}
	if spec.isDetached() || runsItself(found.Labels) {
		if !found.Runs() {
			return nil // package process or persistent removes it, by its record
		}
		if err != nil { // that package removes this one, too, but until then its programs may write
			e.register(found, Spec{
				User: found.Labels[labelUser], Process: Process{ID: found.Labels[labelProcess]},
				Persistent: found.Labels[labelPersistent],
			}, fingerprint, Egress{})
			return nil
		}
		return e.register(found, spec, fingerprint, reach)
	}
	other := e.calls[fingerprint]
	// it is being made: this may be it
	if other != nil && (other.ID() == "" || other.ID() == found.ID) {
		return nil
	}
	if tmp := tmpOf(found.Mounts); err == nil && found.Runs() &&
		(platform == nil || spec.Platform.equal(*platform)) &&
		!spec.IsPooled() && (tmp == "" || tmp == spec.tmpName()) && other == nil {
		adopted = e.register(found, spec, fingerprint, reach)
		adopted.SetPlace(e.cfg.Quotas.Hold(adopted.Account(), quota.Containers, 1))
		e.calls[fingerprint] = adopted
		e.publish(adopted, "starting")
		return adopted
	}
	e.cfg.Log.Info().Str("container", found.ID[:12]).Str("state", string(found.State)).
		AnErr("labels", err).
		Msg("removing container: stale, stopped or unreadable")
	stale := e.register(found, spec, fingerprint, reach) // its programs may still write
	stale.pool = filepath.Dir(stale.spool)
	stale.net.Leave() // it keeps no network in use
	stale.Do(life.Remove, nil)
	e.RemoveLater(stale) // a call that wants its name waits for it
	return nil
}

// specOf returns the Spec of a container that was found, and its fingerprint. Detached containers
// outlive the service that started them, whose Specs may have had other fields and so another
// fingerprint. e.mu is held.
func (e *Executor) specOf(found engine.Container) (Spec, Fingerprint, error) {
	if record, bound := e.bound[found.ID]; bound {
		return record.Spec, record.Spec.Fingerprint(), nil
	}
	fingerprint := Fingerprint(found.Labels[labelFingerprint])
	if runsItself(found.Labels) {
		spec, err := processSpec(found.Labels)
		return spec, fingerprint, err
	}
	spec, err := specFromLabels(found.Labels)
	return spec, fingerprint, err
}

// runsItself reports whether labels are those of a detached container.
func runsItself(labels map[string]string) bool {
	return (labels[labelProcess] != "" || labels[labelPersistent] != "") &&
		!Spec{User: labels[labelUser]}.IsPooled()
}

// knows reports whether a container is in the registry, even if Docker's events do not reach it
// yet. e.mu is held.
func (e *Executor) knows(id string) bool {
	for c := range e.all {
		if c.ID() == id {
			return true
		}
	}
	return false
}

// register adds a container that was found to the registry, with what it may reach now; e.mu is
// held.
func (e *Executor) register(found engine.Container, spec Spec, fingerprint Fingerprint,
	reach Egress) *Container {
	c := e.newContainer(spec, fingerprint, found.ID, found.State == engine.Paused)
	c.spool, c.tmp = spoolOf(found.Mounts), cmp.Or(tmpOf(found.Mounts), c.tmp)
	moved := func(name string) string { return name }
	if record, bound := e.bound[found.ID]; bound { // its home has another name than Docker says
		moved = movedTo(Spec{User: record.Pooled, SpoolDir: e.poolFolder(record.Pooled)}, spec.User)
		c.pool = e.poolFolder(record.Pooled)
		e.renameFound(c, found)
	}
	for _, m := range found.Mounts {
		if m.Type == engine.Bind && !engine.IsReadOnly(m) {
			c.writes = append(c.writes, moved(m.Source))
		}
	}
	candidate := spec.candidate(reach)
	if spec.isLinked() {
		candidate.At, _ = netip.ParseAddr(found.Labels[labelAddress])
	}
	c.net = e.nets.Found(candidate, found)
	e.enlist(c)
	e.ids[found.ID] = c
	return c
}
