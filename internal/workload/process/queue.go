package process

import (
	"context"
	"maps"
	"sync"
	"time"
)

// reconcileQueue holds the processes that are to be reconciled with their containers.
type reconcileQueue struct {
	mu    sync.Mutex
	now   selection
	later selection
	busy  bool          // a goroutine takes what is due now
	delay time.Duration // of later
	timer Timer         // of later; nil for none
}

// selection is a set of processes, or all of them.
type selection struct {
	all bool
	ids map[string]bool
}

func (s *selection) add(other selection) {
	s.all = s.all || other.all
	if s.ids == nil {
		s.ids = map[string]bool{}
	}
	maps.Copy(s.ids, other.ids)
}

func (s selection) has(id string) bool { return s.all || s.ids[id] }

func only(id string) selection { return selection{ids: map[string]bool{id: true}} }

var every = selection{all: true}

// Ended tells the manager that the container of a process has ended or is gone. It may be wrong. It
// does not block.
func (m *Manager) Ended(id string) { m.enqueue(only(id)) }

// Lost tells the manager that calls of Ended may be missing: all records are compared with the
// existing containers. It does not block.
func (m *Manager) Lost() { m.enqueue(every) }

// enqueue makes a goroutine reconcile processes soon, many requests at once.
func (m *Manager) enqueue(s selection) {
	q := &m.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.now.add(s)
	if !q.busy {
		q.busy = m.background(m.reconcileQueued)
	}
}

// enqueueLater calls enqueue after a delay, which grows until the containers can be listed.
func (m *Manager) enqueueLater(s selection) {
	q := &m.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.later.add(s)
	if q.timer != nil || m.ctx.Err() != nil {
		return
	}
	q.delay = backoffNext(q.delay)
	q.timer = m.cfg.Clock.AfterFunc(q.delay, func() {
		q.mu.Lock()
		due := q.later
		q.later, q.timer = selection{}, nil
		q.mu.Unlock()
		m.enqueue(due)
	})
}

// next takes what is due; when that is nothing, the reconciling goroutine ends.
func (q *reconcileQueue) next() (s selection, some bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, q.now = q.now, selection{}
	q.busy = s.all || len(s.ids) > 0
	return s, q.busy
}

func (q *reconcileQueue) listed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.delay = 0
}

func (q *reconcileQueue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
	}
}

func (m *Manager) reconcileQueued(ctx context.Context) {
	for {
		s, some := m.queue.next()
		if !some {
			return
		}
		if err := m.list(ctx, s); err != nil && ctx.Err() == nil {
			m.log.Warn().Err(err).Msg("cannot tell the state of the processes; trying again")
			m.enqueueLater(s)
		}
	}
}
