package budget

import (
	"net/netip"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/fair"
)

// timeWait is how long the kernel keeps a port after a connection that its own side ended first: a
// minute (TCP_TIMEWAIT_LEN, which cannot be set), and up to five seconds more, because its timers
// of that length are coarse.
const timeWait = 66 * time.Second

// Ports are the host's own ports towards each destination. A connection takes one, and if our side
// ends it first, the kernel keeps the port for a minute more. It is safe for concurrent use.
type Ports struct {
	begun time.Time
	total int        // towards one destination
	all   *fair.Pool // over all destinations: what is known of them and what the kernel keeps is memory

	mu      sync.Mutex
	pools   map[netip.AddrPort]*fair.Pool
	waiting []wait // the oldest first
	refused uint64
}

// wait is a number of ports that the kernel keeps.
type wait struct {
	until time.Time
	user  string
	to    netip.AddrPort
	count int
}

// NewPorts shares total ports towards each destination, and four times as many over all
// destinations.
func NewPorts(total int) *Ports {
	const destinations = 4
	return &Ports{begun: time.Now(), total: total, all: fair.NewPool(destinations*total, 0),
		pools: map[netip.AddrPort]*fair.Pool{}}
}

// Take reports whether user may use one more port towards a destination.
func (p *Ports) Take(user string, to netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(time.Now())
	if !p.all.Take(user, 1) {
		p.refused++
		return false
	}
	pool := p.pools[to]
	if pool == nil {
		pool = fair.NewPool(p.total, 0)
		p.pools[to] = pool
	}
	if !pool.Take(user, 1) {
		p.all.Give(user, 1)
		p.refused++
		return false
	}
	return true
}

// Give gives a port back; kept says that our side ended the connection first.
func (p *Ports) Give(user string, to netip.AddrPort, kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.expire(now)
	if !kept {
		p.give(user, to, 1)
		return
	}
	// Rounded, so that a flood takes one entry a second. A time's own Truncate would lose its
	// monotonic clock.
	until := p.begun.Add((now.Sub(p.begun) + timeWait).Truncate(time.Second) + time.Second)
	if n := len(p.waiting); n > 0 {
		if last := &p.waiting[n-1]; last.until.Equal(until) && last.user == user && last.to == to {
			last.count++
			return
		}
	}
	p.waiting = append(p.waiting, wait{until: until, user: user, to: to, count: 1})
}

func (p *Ports) expire(now time.Time) {
	n := 0
	for n < len(p.waiting) && !now.Before(p.waiting[n].until) {
		w := p.waiting[n]
		p.give(w.user, w.to, w.count)
		n++
	}
	if n == len(p.waiting) {
		p.waiting = nil
	} else {
		p.waiting = p.waiting[n:]
	}
}

func (p *Ports) give(user string, to netip.AddrPort, n int) {
	p.all.Give(user, n)
	pool := p.pools[to]
	pool.Give(user, n)
	if pool.Stats().Used == 0 {
		delete(p.pools, to)
	}
}

// Stats returns the sums over all destinations.
func (p *Ports) Stats() fair.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(time.Now())
	return fair.Stats{Used: p.all.Stats().Used, Total: p.all.Stats().Total, Refused: p.refused}
}
