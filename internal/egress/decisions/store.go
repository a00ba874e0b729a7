package decisions

import (
	"container/heap"
	"strings"
	"time"
)

// store holds the entries. All of its methods are fast, whatever it holds: the slowest is
// logarithmic in the number of users.
type store struct {
	used   []entry // never beyond its capacity: entries are pointed to
	index  map[key]*entry
	owners map[string]*owner
	most   byCount // of the owners
}

// entry is a decision in its owner's list.
type entry struct {
	Decision
	told         time.Time // when it was last reported
	owner        *owner
	older, newer *entry
}

// owner is a user who has entries: a ring of them, which the root closes.
type owner struct {
	user  string
	count int
	place int // in the heap
	root  entry
}

func newStore(capacity int) store {
	return store{used: make([]entry, 0, capacity), index: map[key]*entry{},
		owners: map[string]*owner{}}
}

// add records a decision, and returns its entry.
func (s *store) add(d *Decision) *entry {
	if e := s.index[d.key()]; e != nil {
		e.Seq, e.Time = d.Seq, d.Time
		e.Count++
		e.unlink()
		e.linkNewest()
		return e
	}
	o := s.owner(d.User)
	e := s.free(o)
	*e = entry{Decision: *d, owner: o}
	// The name may be a part of something large.
	e.Name = strings.Clone(d.Name)
	e.linkNewest()
	s.index[e.key()] = e
	o.count++
	heap.Fix(&s.most, o.place)
	return e
}

func (s *store) owner(user string) *owner {
	o := s.owners[user]
	if o == nil {
		o = &owner{user: user}
		o.root.older, o.root.newer = &o.root, &o.root
		s.owners[user] = o
		heap.Push(&s.most, o)
	}
	return o
}

// free returns a slot for an entry of o. If none is left, the oldest entry of the owner with the
// most is removed; that is o itself if none has more.
func (s *store) free(o *owner) *entry {
	if len(s.used) < cap(s.used) {
		s.used = s.used[:len(s.used)+1]
		return &s.used[len(s.used)-1]
	}
	from := s.most[0]
	if o.count >= from.count {
		from = o
	}
	e := from.root.newer
	e.unlink()
	delete(s.index, e.key())
	from.count--
	if from.count > 0 || from == o {
		heap.Fix(&s.most, from.place)
	} else {
		heap.Remove(&s.most, from.place)
		delete(s.owners, from.user)
	}
	return e
}

func (e *entry) unlink() {
	e.older.newer, e.newer.older = e.newer, e.older
}

func (e *entry) linkNewest() {
	root := &e.owner.root
	e.older, e.newer = root.older, root
	e.older.newer, root.older = e, e
}

// byCount is a heap of owners, the one with the most entries first.
type byCount []*owner

func (h byCount) Len() int           { return len(h) }
func (h byCount) Less(i, j int) bool { return h[i].count > h[j].count }

func (h byCount) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *byCount) Push(x any) {
	o := x.(*owner)
	o.place = len(*h)
	*h = append(*h, o)
}

func (h *byCount) Pop() any {
	last := len(*h) - 1
	o := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return o
}
