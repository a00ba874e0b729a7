package dockerexec

// After a restart there may be a hundred containers to take over, and each costs an exec. So they queue, and a few are
// taken over at a time. A container that a call waits for skips the queue. One that was found paused stays so until
// then: nothing runs in it.

// adoptionsAtOnce is how many containers that no call waits for are taken over at a time.
const adoptionsAtOnce = 4

// adopt takes over containers that were found. Each is already in the map of its kind.
func (e *Executor) adopt(found []*container) {
	for _, c := range found {
		e.work.Go(func() { e.adoptInTurn(c) })
	}
}

// adoptInTurn takes a container over in its turn, or as soon as a call wants it. One that sleeps gets no turn.
func (e *Executor) adoptInTurn(c *container) {
	e.mu.Lock()
	turn := e.adopting
	if c.sleeps() {
		turn = nil
	}
	e.mu.Unlock()
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-c.called:
	case <-c.gone:
		return
	case <-e.ctx.Done():
	}
	if e.ctx.Err() != nil { // it is left to the next service
		c.err = errStopping
		close(c.ready)
		return
	}
	e.takeOver(c)
}

func (e *Executor) takeOver(c *container) {
	if c.paused && !e.staysPaused(c) {
		e.wake(c)
	}
	_, _ = e.countRefusals(c) // what an earlier service's commands were refused is nothing to those that come
	if c.spec.isAlone() {
		e.rebind(c)
	} else {
		e.prepare(c, &e.cfg.Log)
	}
}

// staysPaused reports whether a container that was found paused is one that was, or may have been, paused on request.
func (e *Executor) staysPaused(c *container) bool {
	return c.spec.Lasting != "" || c.spec.Process.ID != "" && e.watcher != nil && e.watcher.Paused(c.spec.User, c.spec.Process.ID)
}

// wake resumes a container that was found paused.
func (e *Executor) wake(c *container) {
	done, err := e.pauses.use(e.ctx, e.engine, c.id)
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
