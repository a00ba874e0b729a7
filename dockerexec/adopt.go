package dockerexec

import "slices"

// After a restart there may be a hundred containers to take over, and each costs an exec. So they queue, a few are
// taken over at a time, and one that a call waits for does not queue any more. One that was found paused sleeps until then:
// nothing runs in it.

// adoptionsAtOnce is how many containers are taken over at a time without a call that waits for them.
const adoptionsAtOnce = 4

// adopt queues containers that were found, each in the map of its kind already.
func (e *Executor) adopt(found []*container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range found {
		if !c.sleeps() {
			e.queue = append(e.queue, c)
		}
	}
	e.adoptNext()
}

// adoptNext takes over as many as may be at a time; e.mu is held.
func (e *Executor) adoptNext() {
	for len(e.queue) > 0 && (e.adopting < adoptionsAtOnce || e.closed) {
		c := e.queue[0]
		e.queue = e.queue[1:]
		if e.closed { // the next service's, then
			c.err = errStopping
			e.work.Go(func() { e.giveUp(c) })
			continue
		}
		e.adopting++
		e.work.Go(func() {
			e.takeOver(c)
			e.mu.Lock()
			defer e.mu.Unlock()
			e.adopting--
			e.adoptNext()
		})
	}
}

// adoptNow takes a container over now if it queues or sleeps; e.mu is held.
func (e *Executor) adoptNow(c *container) {
	if c.sleeps() {
		c.frozen = false
		e.freezes.thawed++
		e.work.Go(func() { e.takeOver(c) })
	}
	if i := slices.Index(e.queue, c); i >= 0 {
		e.queue = slices.Delete(e.queue, i, i+1)
		e.work.Go(func() { e.takeOver(c) })
	}
}

func (e *Executor) takeOver(c *container) {
	if c.paused && !e.staysPaused(c) {
		e.wake(c)
	}
	if c.spec.Process.ID != "" || c.spec.Lasting != "" {
		e.rebind(c)
	} else {
		e.prepare(c, &e.cfg.Log)
	}
}

// staysPaused reports whether a container that was found paused is one that was paused on request.
func (e *Executor) staysPaused(c *container) bool {
	return c.spec.Lasting != "" || c.spec.Process.ID != "" && e.watcher != nil && e.watcher.Paused(c.spec.Process.ID)
}

// wake lets a container go on that was found paused.
func (e *Executor) wake(c *container) {
	done, err := e.pauses.use(e.ctx, e.docker, c.id)
	if err != nil {
		e.tell(e.ctx, c, Incident{What: "taking over a container", Err: err})
		return
	}
	done()
	e.mu.Lock()
	defer e.mu.Unlock()
	c.paused = false
	e.host.ForbidSwap(c.id) // an earlier service may have given its memory back
}
