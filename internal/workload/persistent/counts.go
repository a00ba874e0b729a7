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
// called at once if the container is gone, and the command with it.
func (e *entry) begun(pid int, give func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.commands == nil {
		give()
		return
	}
	if before := e.commands[pid]; before != nil {
		before.give() // it has ended, as its pid was used again
	}
	e.commands[pid] = &counted{give: give, followers: 1}
}

// followed counts another follower of a command.
func (e *entry) followed(pid int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.commands[pid]; c != nil {
		c.followers++
	}
}

// left says that a follower of a command has gone, and whether the command has ended.
func (e *entry) left(pid int, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.commands[pid]
	if c == nil {
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
		e.mu.Unlock()
		if asks {
			s.work.Go(e.recountOne)
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
	before, account := maps.Clone(e.commands), e.record.account()
	e.mu.Unlock()
	running, err := (&Sandbox{entry: e, owner: account.Token, asleep: true}).Commands(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counting = false
	if err != nil || e.gone || e.commands == nil {
		return // the next recount tries again
	}
	runs := map[int]bool{}
	for _, r := range running {
		runs[r.PID] = true
		if e.counted || e.commands[r.PID] != nil {
			continue
		}
		// An earlier service has counted it.
		e.commands[r.PID] = &counted{give: e.of.cfg.Quotas.Hold(account, quota.Commands, 1)}
	}
	e.counted = true
	for pid, c := range before {
		if !runs[pid] && c.followers <= 0 && e.commands[pid] == c {
			delete(e.commands, pid)
			c.give()
		}
	}
}
