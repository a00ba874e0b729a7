// Package events is the single stream of what happens in the service: calls, containers, processes,
// egress decisions, and a cluster's hosts and seats. Metrics, the log and the followers of
// /v1/events all get the same events. Events that only operators may see are of the kind Told.
//
// Recent events are kept in one ring per kind, so that a flood of one kind takes no room from the
// others. Followers have no queue: each has a place in the rings, and reads from there. A follower
// that does not read costs nobody anything, and is told of a gap when it comes back too late.
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
	// Told is for events that only the sinks get: they are not kept, and cannot be followed.
	Told = kinds
)

// names are the names of the kinds, as callers write them.
var names = [kinds]string{"call", "container", "process", "decision", "node", "seat"}

func (k Kind) String() string { return names[k] }

// Names returns the names of all kinds.
func Names() []string { return names[:] }

// ParseKind parses one of Names.
func ParseKind(name string) (Kind, bool) {
	i := slices.Index(names[:], name)
	return Kind(max(i, 0)), i >= 0
}

// kept is how many events of each kind are kept; calls and decisions are the most frequent.
var kept = [kinds]int{Call: 4096, Container: 2048, Process: 1024, Decision: 4096, Node: 256,
	Seat: 2048}

// Event is something that has happened.
type Event struct {
	// Seq counts from 1, across all kinds.
	Seq  uint64
	Time time.Time
	Kind Kind
	// User is the user whom it is about; empty if no user is known.
	User string
	// Detail is the publisher's description: a small value that never changes.
	Detail any

	log *zerolog.Logger // the logger of the call it belongs to, with the request's id; nil for none
}

// MaxFollowers is how many may follow, which the callers of Follow enforce: each one searches the
// rings up to ten times a second.
const MaxFollowers = 64

// Stream is safe for concurrent use. A nil Stream accepts events and keeps none.
type Stream struct {
	// Epoch distinguishes this stream from those of earlier and later runs of the service.
	Epoch string
	sinks []func(*Event)

	mu      sync.Mutex
	seq     uint64
	rings   [kinds]ring
	changed chan struct{} // closed by the next event; nil if nobody waits
}

// ring has the latest events of a kind: the nth event overall is at n modulo its length.
type ring struct {
	events []Event
	count  int    // of all events ever added
	gone   uint64 // the Seq of the latest event that was overwritten
}

// New returns a stream. The publisher calls the sinks with every event, before followers see it. A
// sink must not block.
func New(sinks ...func(*Event)) *Stream {
	s := &Stream{Epoch: rand.Text()[:12], sinks: sinks}
	for kind := range s.rings {
		s.rings[kind].events = make([]Event, kept[kind])
	}
	return s
}

// Publish reports that something has happened now. It waits only for the sinks.
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

// Tell reports to the sinks only that something has happened now, in the call that ctx belongs to.
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

// Line is a Detail that operators read in the log. It may write nothing, and never writes a secret.
type Line interface {
	Line(log *zerolog.Logger, user string)
}

// Texts adds fields, given as pairs of name and text, to a line, and leaves out empty ones.
func Texts(line *zerolog.Event, fields ...string) *zerolog.Event {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] != "" {
			line = line.Str(fields[i], fields[i+1])
		}
	}
	return line
}

// Log returns the sink that writes log lines about events. The publisher of a Line waits until it
// is written, and so must hold no lock that others wait for.
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

// Filter selects events. An empty field does not restrict them.
type Filter struct {
	User  string
	Kinds []Kind
	// Scope reports whether the follower may see a user's events; nil allows all, including events
	// without a user.
	Scope func(user string) bool
}

func (f *Filter) matches(e *Event) bool {
	return (f.User == "" || f.User == e.User) && (f.Scope == nil || e.User != "" && f.Scope(e.User))
}

// Follower is a place in a stream. It is for one goroutine.
type Follower struct {
	stream *Stream
	filter Filter
	place  uint64 // everything up to here has been seen
}

// Follow starts after an event; 0 starts with the oldest one kept.
func (s *Stream) Follow(filter Filter, after uint64) *Follower {
	filter.Kinds = distinct(filter.Kinds)
	return &Follower{stream: s, filter: filter, place: after}
}

// distinct returns each kind once, or all kinds if none is named.
func distinct(named []Kind) (list []Kind) {
	for kind := range kinds {
		if len(named) == 0 || slices.Contains(named, kind) {
			list = append(list, kind)
		}
	}
	return list
}

// Now returns the Seq of the latest event.
func (s *Stream) Now() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

// Place returns the Seq up to which everything has been seen.
func (f *Follower) Place() uint64 { return f.place }

// Batch is the maximum number of events that Next returns.
const Batch = 512

// Next returns the next events in order, and waits until there is one that matches. gap reports
// whether earlier events are no longer kept; they may have been about other users. The error is the
// context's.
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

// take returns the events there are, and a channel that is closed when there are more.
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
		if len(list) >= Batch { // each kind contributes at most Batch
			list = list[:Batch]
			f.place = list[Batch-1].Seq
		}
	}
	if len(list) == 0 && s.changed == nil {
		s.changed = make(chan struct{})
	}
	return list, gap, s.changed
}

// since appends the oldest matching events after a place, at most Batch of them.
func (r *ring) since(list []Event, place uint64, filter *Filter) []Event {
	first := max(r.count-len(r.events), 0)
	begin := first + sort.Search(r.count-first, func(i int) bool {
		return r.at(first+i).Seq > place
	})
	for n, found := begin, 0; n < r.count && found < Batch; n++ {
		if e := r.at(n); filter.matches(e) {
			list = append(list, *e)
			found++
		}
	}
	return list
}

func (r *ring) at(n int) *Event { return &r.events[n%len(r.events)] }
