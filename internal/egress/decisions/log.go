package decisions

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"
)

// Log keeps decisions. It is safe for concurrent use. A Log that Scoped returns has the same
// decisions and shows a part of them.
type Log struct {
	*kept
	scope func(user string) bool // whose decisions are reported; nil for everyone's
}

// kept is what a Log shares with those that Scoped returns.
type kept struct {
	seed maphash.Seed
	told func(Decision) // nil if nobody is to be told

	mu        sync.Mutex // guards all below, and what followers and tallies have gathered
	seq       uint64
	store     store
	totals    map[Kind]uint64
	followers []*Follower
	calls     map[string]*calls // by container, if it has any
	late      map[int]func()    // by number; called without the mutex
	lates     int
}

// New returns a log for capacity entries, at least 1. An entry takes at most about 1 KiB, most take
// half of that. told, if given, is called for each entry when it is new and, while it is repeated,
// once a second; it must not block.
func New(capacity int, told ...func(Decision)) *Log {
	l := &Log{kept: &kept{
		seed:   maphash.MakeSeed(),
		store:  newStore(max(capacity, 1)),
		totals: kinds(),
		calls:  map[string]*calls{},
		late:   map[int]func(){},
	}}
	if len(told) > 0 {
		l.told = told[0]
	}
	return l
}

// Scoped returns the log for callers who may know only about some users: Recent and Follow return
// nothing of others, nor decisions without a user. Totals are over all users.
func (l *Log) Scoped(users func(user string) bool) *Log {
	return &Log{kept: l.kept, scope: users}
}

// Add keeps a decision. It sets Seq, Count and First, and a zero Time means now. The name is copied
// unless it is known; the other strings are kept, and are meant to be few. Add waits only for the
// mutex, and a repeat allocates nothing.
func (l *Log) Add(d Decision) {
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	d.Count, d.First = 1, d.Time

	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	d.Seq = l.seq
	l.totals[Kind{d.Via, d.Verdict}]++
	e := l.store.add(&d)
	d.Name = e.Name
	if l.told != nil && d.Time.Sub(e.told) >= tellAgain {
		e.told = d.Time
		l.told(e.Decision)
	}
	for _, f := range l.followers {
		f.offer(&d)
	}
	if d.Verdict == Allowed || len(l.calls) == 0 {
		return
	}
	if c := l.calls[d.Container]; c != nil {
		c.add(&d)
	}
}

// tellAgain is after how long a repeat is reported.
const tellAgain = time.Second

// Late is for whoever may call Add a moment after the program could learn of the decision. A tally
// ends once add has added what there is; add must not wait. That goes on until end is called.
func (l *Log) Late(add func()) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lates++
	number := l.lates
	l.late[number] = add
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.late, number)
	}
}

// catchUp adds what is late.
func (l *Log) catchUp() {
	l.mu.Lock()
	late := slices.Collect(maps.Values(l.late))
	l.mu.Unlock()
	for _, add := range late {
		add()
	}
}

// Totals returns how many decisions of each kind there were since New. Kinds that did not occur are
// there with 0. The map is the caller's.
func (l *Log) Totals() map[Kind]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.totals)
}

// piece is how many entries are looked at before Add gets its turn.
const piece = 64

// Recent returns the entries that match, the oldest first: if there are more than limit, the newest
// of them. A limit of 0 or less means all. What is added meanwhile may be in it or not.
func (l *Log) Recent(filter Filter, limit int) []Decision {
	filter.scope = l.scope
	matching := 0
	for from, more := 0, true; more; from += piece {
		more = l.look(&filter, from, func(*Decision) { matching++ })
	}
	if limit > 0 && limit < matching/2 {
		matching = 2*limit + piece
	}
	found := make([]Decision, 0, matching+piece) // allocated once: growing it step by step takes four times as much
	for from, more := 0, true; more; from += piece {
		found = slices.Grow(found, piece) // not under the lock
		more = l.look(&filter, from, func(d *Decision) { found = append(found, *d) })
		if limit > 0 && (len(found)-piece)/2 >= limit {
			found = newest(found, limit)
		}
	}
	return newest(found, limit)
}

// newest puts decisions in order, and leaves out the oldest that are beyond limit.
func newest(found []Decision, limit int) []Decision {
	slices.SortFunc(found, func(a, b Decision) int { return cmp.Compare(a.Seq, b.Seq) })
	if limit > 0 && len(found) > limit {
		found = slices.Delete(found, 0, len(found)-limit)
	}
	return found
}

// look calls take with what matches in one piece of the entries, and reports whether there are
// further ones. A repeated entry stays in its slot, so nothing is passed over.
func (l *Log) look(filter *Filter, from int, take func(*Decision)) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	used := l.store.used
	for i := from; i < min(from+piece, len(used)); i++ {
		if d := &used[i].Decision; filter.matches(d) {
			take(d)
		}
	}
	return from+piece < len(used)
}
