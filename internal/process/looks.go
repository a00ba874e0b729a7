package process

import (
	"context"
	"maps"
	"sync"
	"time"
)

// looks is what is asked to be looked at.
type looks struct {
	mu        sync.Mutex
	now       asked
	later     asked
	busy      bool          // a goroutine looks
	delay     time.Duration // of later
	stopTimer func() bool   // of later; nil for none
}

// asked is which processes: some, or all.
type asked struct {
	all bool
	ids map[string]bool
}

func (w *asked) add(other asked) {
	w.all = w.all || other.all
	if w.ids == nil {
		w.ids = map[string]bool{}
	}
	maps.Copy(w.ids, other.ids)
}

func (w asked) has(id string) bool { return w.all || w.ids[id] }

func one(id string) asked { return asked{ids: map[string]bool{id: true}} }

var every = asked{all: true}

// Ended says that the container of a process has ended or is gone, and may be wrong. It does not block.
func (m *Manager) Ended(id string) { m.ask(one(id)) }

// Lost says that calls of Ended may be missing. It does not block; Reconcile does the same and waits.
func (m *Manager) Lost() { m.ask(every) }

// ask has a goroutine look soon. It takes many requests at once.
func (m *Manager) ask(w asked) {
	l := &m.looks
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.add(w)
	if !l.busy {
		l.busy = m.background(m.lookWhileAsked)
	}
}

// askLater is ask after a delay, which grows until a look succeeds.
func (m *Manager) askLater(w asked) {
	l := &m.looks
	l.mu.Lock()
	defer l.mu.Unlock()
	l.later.add(w)
	if l.stopTimer != nil || m.ctx.Err() != nil {
		return
	}
	l.delay = backoffNext(l.delay)
	l.stopTimer = m.cfg.Clock.AfterFunc(l.delay, func() {
		l.mu.Lock()
		due := l.later
		l.later, l.stopTimer = asked{}, nil
		l.mu.Unlock()
		m.ask(due)
	})
}

// next takes what is asked for; the goroutine that looks ends when that is nothing.
func (l *looks) next() (w asked, some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, l.now = l.now, asked{}
	l.busy = w.all || len(w.ids) > 0
	return w, l.busy
}

func (l *looks) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopTimer != nil {
		l.stopTimer()
	}
}

func (m *Manager) lookWhileAsked(ctx context.Context) {
	for {
		w, some := m.looks.next()
		if !some {
			return
		}
		if _, err := m.look(ctx, w); err != nil && ctx.Err() == nil {
			m.log.Warn().Err(err).Msg("cannot tell how the processes are; it is tried again")
			m.askLater(w)
		}
	}
}
