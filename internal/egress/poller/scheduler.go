package poller

// scheduler orders the turns of a loop's sessions. Turns go by user, not by session: each user in turn may have as
// much done as the others (deficit round robin). The sessions of a user with thousands of busy ones wait for each
// other, and a user with a single session waits at most until each of the others has had one turn.
type scheduler struct {
	users map[string]*queue
	order []*queue // users with something to do
	done  int      // what the present turn has cost
}

// queue is one user's sessions that have something to do.
type queue struct {
	user string
	// fresh are sessions to which something has happened, and begun those that did not finish in their last
	// turn. The two alternate, so that a stream does not hold up a connection that is being set up.
	fresh, begun []*Session
	continued    bool // the last session was one of begun
	credit       int
}

const (
	// turnShare is how much is done for a user in one turn, in bytes moved.
	turnShare = 128 << 10
	// stepCost is what a step counts besides the bytes that it moves: it takes about as long as moving so many.
	stepCost = 16 << 10
)

// did adds to what the present turn has cost.
func (sc *scheduler) did(bytes int) { sc.done += bytes }

// add queues a session for its turn, once.
func (sc *scheduler) add(s *Session) {
	if s.queued {
		return
	}
	s.queued = true
	user := s.handler.User()
	q := sc.users[user]
	if q == nil {
		q = &queue{user: user}
		sc.users[user] = q
		sc.order = append(sc.order, q)
	}
	if s.continues {
		q.begun = append(q.begun, s)
	} else {
		q.fresh = append(q.fresh, s)
	}
}

// round gives each user one turn.
func (sc *scheduler) round() {
	for range len(sc.order) {
		q := sc.order[0]
		sc.order = sc.order[1:]
		q.credit += turnShare
		for q.credit > 0 && q.waits() {
			sc.done = stepCost
			s := q.next()
			s.queued, s.continues = false, false
			s.step()
			q.credit -= sc.done
		}
		if q.waits() {
			sc.order = append(sc.order, q)
		} else {
			delete(sc.users, q.user)
		}
	}
}

func (sc *scheduler) idle() bool { return len(sc.order) == 0 }

func (q *queue) waits() bool { return len(q.fresh)+len(q.begun) > 0 }

func (q *queue) next() *Session {
	from := &q.fresh
	q.continued = len(q.fresh) == 0 || len(q.begun) > 0 && !q.continued
	if q.continued {
		from = &q.begun
	}
	s := (*from)[0]
	*from = (*from)[1:]
	return s
}
