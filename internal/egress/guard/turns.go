package guard

// turns is the order in which a poller's links have their turns. It is by user, not by link: each user in
// turn may have so much done as the others (deficit round robin). So who has thousands of busy connections waits
// for its own, and who has one waits at most until each of the others has had one turn.
type turns struct {
	users map[string]*turn
	order []*turn // who has something to do
	done  int     // what the present turn has cost
}

// turn is one user's.
type turn struct {
	user string
	// fresh are links of which something has happened, and begun those that were not done with their last
	// turn. They take turns, so that a stream does not hold up who sets up a connection.
	fresh, begun []*link
	continued    bool // the last of both
	credit       int
}

const (
	// turnShare is how much a user has done in one turn, in bytes that are moved.
	turnShare = 128 << 10
	// stepCost is what a step counts beside what it moves: about as much time.
	stepCost = 16 << 10
)

// did adds to what the present turn has cost.
func (ts *turns) did(bytes int) { ts.done += bytes }

// add has a link get its turn, once.
func (ts *turns) add(l *link) {
	if l.queued {
		return
	}
	l.queued = true
	user := l.flow.client.User()
	t := ts.users[user]
	if t == nil {
		t = &turn{user: user}
		ts.users[user] = t
		ts.order = append(ts.order, t)
	}
	if l.continues {
		t.begun = append(t.begun, l)
	} else {
		t.fresh = append(t.fresh, l)
	}
}

// round gives each user one turn.
func (ts *turns) round() {
	for range len(ts.order) {
		t := ts.order[0]
		ts.order = ts.order[1:]
		t.credit += turnShare
		for t.credit > 0 && t.waits() {
			ts.done = stepCost
			l := t.next()
			l.queued, l.continues = false, false
			l.step()
			t.credit -= ts.done
		}
		if t.waits() {
			ts.order = append(ts.order, t)
		} else {
			delete(ts.users, t.user)
		}
	}
}

func (ts *turns) idle() bool { return len(ts.order) == 0 }

func (t *turn) waits() bool { return len(t.fresh)+len(t.begun) > 0 }

func (t *turn) next() *link {
	from := &t.fresh
	t.continued = len(t.fresh) == 0 || len(t.begun) > 0 && !t.continued
	if t.continued {
		from = &t.begun
	}
	l := (*from)[0]
	*from = (*from)[1:]
	return l
}
