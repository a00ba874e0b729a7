package guard

import "sync"

// gate lets as few goroutines copy at a time as there are processors, and users in turn: the scheduler is fair to
// goroutines, of which a tenant has as many as it likes. What is behind it must not block.
type gate struct {
	mu    sync.Mutex
	free  int
	lines map[string]*line
	order []*line
}

// line is who waits of one user.
type line struct {
	user  string
	turns []chan struct{}
}

func newGate(atOnce int) *gate { return &gate{free: atOnce, lines: map[string]*line{}} }

// enter waits for a turn of the user's.
func (g *gate) enter(user string) {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return
	}
	mine := make(chan struct{})
	l := g.lines[user]
	if l == nil {
		l = &line{user: user}
		g.lines[user] = l
		g.order = append(g.order, l)
	}
	l.turns = append(l.turns, mine)
	g.mu.Unlock()
	<-mine
}

// leave gives the turn to the user who is next.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.order) == 0 {
		g.free++
		return
	}
	l := g.order[0]
	g.order = g.order[1:]
	close(l.turns[0])
	if l.turns = l.turns[1:]; len(l.turns) > 0 {
		g.order = append(g.order, l)
	} else {
		delete(g.lines, l.user)
	}
}
