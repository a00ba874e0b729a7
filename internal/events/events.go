// Package events is the one stream of what happens in the service: calls, containers, processes, decisions of egress, and a cluster's
// hosts and seats.
// Metrics, the log and whoever follows /v1/events are told the same. What only operators may know is of the kind Told.
//
// What has happened lately is kept in a ring for each kind, so that a flood of one kind takes no room from the others. Those
// who follow have no queue: they have a place in the rings, and read from there. So one who does not read costs nobody
// anything, and is told of a gap when it comes back too late.
package events

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Kind is what an event is about.
type Kind uint8

// The kinds.
const (
	Call Kind = iota
	Container
	Process
	Decision
	Node
	Seat
	kinds
	// Told is of what the sinks alone are told: it is not kept, and nobody follows it.
	Told = kinds
)

// names are those of the kinds, as callers write them.
var names = [kinds]string{"call", "container", "process", "decision", "node", "seat"}

func (k Kind) String() string { return names[k] }

// Names are all kinds.
func Names() []string { return names[:] }

// ParseKind reads one of Names.
func ParseKind(name string) (Kind, bool) {
	i := slices.Index(names[:], name)
	return Kind(max(i, 0)), i >= 0
}

// kept is how many events of each kind are kept: of calls and decisions there are the most.
var kept = [kinds]int{Call: 4096, Container: 2048, Process: 1024, Decision: 4096, Node: 256, Seat: 2048}

// Event is something that has happened.
type Event struct {
	// Seq counts from 1, over all kinds.
	Seq  uint64
	Time time.Time
	Kind Kind
	// User is whom it is about; empty for nobody who is known.
	User string
	// Detail is what the publisher says of it: a value that is small and never changes.
	Detail any

	log *zerolog.Logger // that of the call which it came of, with the request's id; nil for none
}

// MaxFollowers is how many may follow, which whoever lets them sees to: each looks through the rings ten times a second at most.
const MaxFollowers = 64

// Stream is safe for concurrent use. That of nil takes events and keeps none.
type Stream struct {
	// Epoch tells this stream from that of a service before, or after.
	Epoch string
	sinks []func(*Event)

	mu      sync.Mutex
	seq     uint64
	rings   [kinds]ring
	changed chan struct{} // closed by the next event; nil where nobody waits
}

// ring has the latest events of a kind: the nth of all is at n modulo its length.
type ring struct {
	events []Event
	count  int    // of all that were ever in it
	gone   uint64 // the Seq of the latest that gave way
}

// New returns a stream. The sinks are told of every event before those who follow, by its publisher: none may block.
func New(sinks ...func(*Event)) *Stream {
	s := &Stream{Epoch: rand.Text()[:12], sinks: sinks}
	for kind := range s.rings {
		s.rings[kind].events = make([]Event, kept[kind])
	}
	return s
}

// Publish says that something has happened now. It waits for nobody but the sinks.
func (s *Stream) Publish(kind Kind, user string, detail any) {
	if s == nil {
		return
	}
	e := Event{Time: time.Now(), Kind: kind, User: user, Detail: detail}
	s.tell(&e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	e.Seq = s.seq
	s.rings[kind].add(e)
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Tell says to the sinks alone that something has happened now, in the call whose context it is.
func (s *Stream) Tell(ctx context.Context, user string, detail any) {
	if s == nil {
		return
	}
	e := Event{Time: time.Now(), Kind: Told, User: user, Detail: detail}
	if log := zerolog.Ctx(ctx); log.GetLevel() != zerolog.Disabled {
		e.log = log
	}
	s.tell(&e)
}

func (s *Stream) tell(e *Event) {
	for _, sink := range s.sinks {
		sink(e)
	}
}

// Line is a Detail of which operators read in the log. It may write nothing, and writes no secret.
type Line interface {
	Line(log *zerolog.Logger, user string)
}

// Texts adds those of a line's fields that are not empty: each is a name and a text.
func Texts(line *zerolog.Event, fields ...string) *zerolog.Event {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] != "" {
			line = line.Str(fields[i], fields[i+1])
		}
	}
	return line
}

// Log returns the sink that writes the log's lines about what happens. Who publishes a Line waits until it is written, and so
// holds no lock that others wait for.
func Log(to zerolog.Logger) func(*Event) {
	return func(e *Event) {
		if line, is := e.Detail.(Line); is {
			line.Line(cmp.Or(e.log, &to), e.User)
		}
	}
}

func (r *ring) add(e Event) {
	at := &r.events[r.count%len(r.events)]
	r.gone = max(r.gone, at.Seq)
	*at = e
	r.count++
}

// Filter says which events are meant. A field that is empty asks for nothing.
type Filter struct {
	User  string
	Kinds []Kind
	// Scope reports whether whoever follows may know of a user's events; nil for all, also those of nobody.
	Scope func(user string) bool
}

func (f *Filter) matches(e *Event) bool {
	return (f.User == "" || f.User == e.User) && (f.Scope == nil || e.User != "" && f.Scope(e.User))
}

// Follower is somebody's place in a stream. It is for one goroutine.
type Follower struct {
	stream *Stream
	filter Filter
	place  uint64 // all up to here has been seen
}

// Follow begins after an event; 0 is with the oldest there is.
func (s *Stream) Follow(filter Filter, after uint64) *Follower {
	filter.Kinds = distinct(filter.Kinds)
	return &Follower{stream: s, filter: filter, place: after}
}

// distinct returns each kind once, or all where none is named.
func distinct(named []Kind) (list []Kind) {
	for kind := range kinds {
		if len(named) == 0 || slices.Contains(named, kind) {
			list = append(list, kind)
		}
	}
	return list
}

// Now is the Seq of the latest event.
func (s *Stream) Now() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// Place is up to which event all has been seen.
func (f *Follower) Place() uint64 { return f.place }

// Batch is how many events are returned at a time.
const Batch = 512

// Next returns the next events, in their order, and waits until there is one that matches. gap says that there were others before
// them that are not kept any more; they may have been somebody else's. The error is the context's.
func (f *Follower) Next(ctx context.Context) (list []Event, gap bool, err error) {
	for {
		list, gap, changed := f.take()
		if len(list) > 0 || gap {
			return list, gap, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// take returns what there is, or what is closed when there is more.
func (f *Follower) take() (list []Event, gap bool, changed <-chan struct{}) {
	s := f.stream
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range f.filter.Kinds {
		gap = s.rings[kind].gone > f.place || gap
		list = s.rings[kind].since(list, f.place, &f.filter)
	}
	f.place = s.seq
	if len(list) > 0 {
		slices.SortFunc(list, func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
		if len(list) >= Batch { // each kind gives no more than that
			list = list[:Batch]
			f.place = list[Batch-1].Seq
		}
	}
	if len(list) == 0 && s.changed == nil {
		s.changed = make(chan struct{})
	}
	return list, gap, s.changed
}

// since appends the oldest events after a place that match: no more than are returned.
func (r *ring) since(list []Event, place uint64, filter *Filter) []Event {
	first := max(r.count-len(r.events), 0)
	begin := first + sort.Search(r.count-first, func(i int) bool { return r.at(first+i).Seq > place })
	for n, found := begin, 0; n < r.count && found < Batch; n++ {
		if e := r.at(n); filter.matches(e) {
			list = append(list, *e)
			found++
		}
	}
	return list
}

func (r *ring) at(n int) *Event { return &r.events[n%len(r.events)] }
