package fair

import (
	"math"
	"sync"
)

// Pool is a number of equal things, of which owners have shares. It is safe for concurrent use.
type Pool struct {
	total, limit int // limit is for one owner

	mu      sync.Mutex
	used    int
	has     map[string]int // by owner
	refused uint64
}

// Stats are the numbers of a pool.
type Stats struct {
	Used, Total int
	// Refused counts the requests that were refused since the start.
	Refused uint64
}

// NewPool returns a pool of total things. One owner may have at most limit of them; 0 means no
// limit but its share.
func NewPool(total, limit int) *Pool {
	if limit == 0 {
		limit = total
	}
	return &Pool{total: total, limit: limit, has: map[string]int{}}
}

// Each returns a pool without an end, of which each owner may have at most limit.
func Each(limit int) *Pool {
	return &Pool{total: math.MaxInt, limit: limit, has: map[string]int{}}
}

// Take takes n more for an owner, all or nothing, and reports whether the owner got them.
func (p *Pool) Take(owner string, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(owner, n)
}

// TakeShare takes a part of what the owner could still get, between least and limit: little if much
// is already taken. The second half of what a single owner may have is given only in shares of
// least. It returns 0 if not even least is available.
func (p *Pool) TakeShare(owner string, least, limit int) int {
	const parts = 32
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(max((p.left(owner)-p.total/8)/parts, least), limit)
	if !p.take(owner, n) {
		return 0
	}
	return n
}

func (p *Pool) take(owner string, n int) bool {
	if n > p.left(owner) {
		p.refused++
		return false
	}
	p.used += n
	p.has[owner] += n
	return true
}

// left returns how many more an owner may take.
func (p *Pool) left(owner string) int {
	mine := p.has[owner]
	return min(p.limit-mine, (p.total-p.used-3*mine)/4)
}

// Give gives back n that an owner had.
func (p *Pool) Give(owner string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	p.add(owner, -n)
}

// Move gives n that from had to another owner, whatever that one has.
func (p *Pool) Move(from, to string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(to, n)
	p.add(from, -n)
}

func (p *Pool) add(owner string, n int) {
	if p.has[owner] += n; p.has[owner] <= 0 {
		delete(p.has, owner)
	}
}

// Of returns how many an owner has.
func (p *Pool) Of(owner string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has[owner]
}

// Stats returns the pool's numbers.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Used: p.used, Total: p.total, Refused: p.refused}
}
