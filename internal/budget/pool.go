// Package budget shares what the service has once among its users: descriptors, bytes, ports.
//
// A user may take something while it has no more than a third of what nobody has. So one alone gets a quarter of
// all, a second one a quarter of what is left, and so on: however much some have taken, there is something
// left for who comes next, and who has little gets it before who has much.
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
	// Refused counts what was asked for and not given, since the start.
	Refused uint64
}

// NewPool makes a pool of total things. One user has most of them at the most; 0 is no such bound.
func NewPool(total, most int) *Pool {
	if most == 0 {
		most = total
	}
	return &Pool{total: total, most: most, byUser: map[string]int{}}
}

// Take reports whether user has got n more. All or nothing.
func (p *Pool) Take(user string, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(user, n)
}

// TakeShare takes a part of what user could still get: little where much is taken already, but between least
// and most. The latter half of what a user alone may have is kept for the least. It returns 0 if not even that
// is to be had.
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

// left is how many more user may have.
func (p *Pool) left(user string) int {
	mine := p.byUser[user]
	return min(p.most-mine, (p.total-p.used-3*mine)/4)
}

// Give takes n back that user had.
func (p *Pool) Give(user string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	if p.byUser[user] -= n; p.byUser[user] <= 0 {
		delete(p.byUser, user)
	}
}

// Stats may be called at any time.
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
