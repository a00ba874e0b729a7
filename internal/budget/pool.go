// Package budget shares the service's limited supplies among its users: descriptors, bytes, ports.
//
// A user may take something while it has no more than a third of what nobody has. So a single user
// gets a quarter of everything, a second one a quarter of what is left, and so on: however much
// some have taken, something is left for the next user, and a user who has little gets it before
// one who has much.
package budget

import "sync"

// Pool is a number of equal things. It is safe for concurrent use.
type Pool struct {
	total, most int

	mu      sync.Mutex
	used    int
	byUser  map[string]int
	refused uint64
}

// Stats are the numbers of a pool.
type Stats struct {
	Used, Total int
	// Refused counts the requests that were refused since the start.
	Refused uint64
}

// NewPool returns a pool of total things. One user may have at most most of them; 0 means no such
// bound.
func NewPool(total, most int) *Pool {
	if most == 0 {
		most = total
	}
	return &Pool{total: total, most: most, byUser: map[string]int{}}
}

// Take takes n more for user, all or nothing, and reports whether user got them.
func (p *Pool) Take(user string, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(user, n)
}

// TakeShare takes a part of what user could still get, between least and most: little if much is
// already taken. The second half of what a single user may have is given only in shares of least.
// It returns 0 if not even least is available.
func (p *Pool) TakeShare(user string, least, most int) int {
	const parts = 32
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(max((p.left(user)-p.total/8)/parts, least), most)
	if !p.take(user, n) {
		return 0
	}
	return n
}

func (p *Pool) take(user string, n int) bool {
	if n > p.left(user) {
		p.refused++
		return false
	}
	p.used += n
	p.byUser[user] += n
	return true
}

// left returns how many more user may take.
func (p *Pool) left(user string) int {
	mine := p.byUser[user]
	return min(p.most-mine, (p.total-p.used-3*mine)/4)
}

// Give gives back n that user had.
func (p *Pool) Give(user string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	if p.byUser[user] -= n; p.byUser[user] <= 0 {
		delete(p.byUser, user)
	}
}

// Move gives n that from had to another user, whatever that user has.
func (p *Pool) Move(from, to string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byUser[to] += n
	if p.byUser[from] -= n; p.byUser[from] <= 0 {
		delete(p.byUser, from)
	}
}

// Of returns how many user has.
func (p *Pool) Of(user string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byUser[user]
}

// Stats returns the pool's numbers.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Used: p.used, Total: p.total, Refused: p.refused}
}

func (p *Pool) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used == 0
}
