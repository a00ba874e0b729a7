package persistent

import (
	"context"
	"maps"
	"time"

	"github.com/daycare-run/sandbox/internal/quota"
)

// counted is a command that counts against its sandbox and the token by which that was created,
// from its start to its end, whoever follows it.
type counted struct {
	give      func() // gives its place back; Ledger.Take returned it
	followers int
}

const (
	// recountEvery is how often containers are asked which of the commands that nobody follows have
	// ended, and recountLimit how long an answer may take.
	recountEvery = 10 * time.Second
	recountLimit = 5 * time.Second
)

// begun counts a new command, which has a follower; give gives back what was taken for it. It is
// called at once if the container is gone, and the command with it: then begun returns nil.
func (e *entry) begun(pid int, give func()) *counted {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.commands == nil {
		give()
		return nil
	}
	if before := e.commands[pid]; before != nil {
		before.give() // it has ended, as its pid was used again
	}
	c := &counted{give: give, followers: 1}
	e.commands[pid] = c
	return c
}

// followed counts another follower of a command; nil if the command is not counted.
func (e *entry) followed(pid int) *counted {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.commands[pid]
	if c != nil {
		c.followers++
	}
	return c
}

// left says that a follower of a command has gone, and whether the command has ended. A later
// command with its pid is another one.
func (e *entry) left(pid int, c *counted, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c == nil || e.commands[pid] != c {
		return
	}
	if c.followers--; ended {
		delete(e.commands, pid)
		c.give()
	}
}

// unsure makes the next recount ask the container.
func (e *entry) unsure() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counted = false
}

// uncount drops the commands of a sandbox whose container is gone; the entry's lock is held.
func (e *entry) uncount() {
	for _, c := range e.commands {
		c.give()
	}
	clear(e.commands)
	e.counted = true
}

// countNoMore is uncount for a sandbox that gets no other container, or none before Adopt; the
// entry's lock is held.
func (e *entry) countNoMore() {
	e.uncount()
	e.commands = nil
}

// keepCounts recounts from time to time, until Shutdown.
func (s *Sandboxes) keepCounts() {
	every := time.NewTicker(s.cfg.recountEvery)
	defer every.Stop()
	for s.life.Err() == nil {
		s.recount()
		select {
		case <-every.C:
		case <-s.life.Done():
		}
	}
}

// recount asks all containers of which it is not certain how many commands run. None of them holds
// up another. It also notices sandboxes that have ended.
func (s *Sandboxes) recount() {
	for _, e := range s.entries() {
		e.mu.Lock()
		lost := e.container != "" && e.state() == StateEnded
		if lost {
			e.uncount()
			s.rouse() // it is due
		}
		unknown := !e.counted
		for _, c := range e.commands {
			unknown = unknown || c.followers <= 0
		}
		asks := unknown && !lost && !e.gone && e.container != "" && e.state() == StateRunning &&
			!e.counting
		if asks {
			e.counting = true
		}
		freezes := e.mayFreeze(time.Now())
		e.mu.Unlock()
		switch {
		case asks:
			s.work.Go(e.recountOne)
		case freezes:
			s.work.Go(e.freeze)
		}
	}
}

func (s *Sandboxes) entries() []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*entry, 0, len(s.all))
	for _, e := range s.all {
		list = append(list, e)
	}
	return list
}

func (e *entry) recountOne() {
	ctx, cancel := context.WithTimeout(e.of.life, recountLimit)
	defer cancel()
	e.mu.Lock()
	before, account, knew := maps.Clone(e.commands), e.record.account(), e.counted
	e.counted = true // unless unsure says otherwise from here on
	e.mu.Unlock()
	running, err := (&Sandbox{entry: e, owner: account.Token, asleep: true}).Commands(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counting = false
	if err != nil || e.gone || e.commands == nil {
		e.counted = e.counted && knew // the next recount tries again
		return
	}
	runs := map[int]bool{}
	for _, r := range running {
		runs[r.PID] = true
		if knew || e.commands[r.PID] != nil {
			continue
		}
		// An earlier service has counted it.
		e.commands[r.PID] = &counted{give: e.of.cfg.Quotas.Hold(account, quota.Commands, 1)}
	}
	for pid, c := range before {
		if !runs[pid] && c.followers <= 0 && e.commands[pid] == c {
			delete(e.commands, pid)
			c.give()
		}
	}
}
