package decisions

import (
	"context"
	"hash/maphash"
	"slices"
)

const (
	// maxLines bounds the lines of a tally.
	maxLines = 64
	// maxMore bounds the names that are counted beyond them.
	maxMore = 1000
)

// Summary is one line of what a call asked for and did not get. The types of record that a program
// asks for one name, mostly A and AAAA, are counted together.
type Summary struct {
	Name string
	// Port is 0 if the program gave a name, which says enough.
	Port    uint16
	Via     Via
	Verdict Verdict
	Reason  string
	Count   uint64
}

// Tally gathers what one container did not get during a call: what was denied, failed, limited or
// malformed.
type Tally struct {
	log       *Log
	container string
	news      chan struct{} // holds one when there may be a new line

	// The log's mutex guards these.
	lines []Summary           // in the order in which they first occurred
	index map[Summary]int     // places in lines, by the line with a count of 0
	more  map[uint64]struct{} // hashes of the names that have no line
	told  int                 // lines that Next has returned
}

// Tally begins a tally for a container. Calls that run in one container at the same time cannot be
// told apart: each one's tally gets what happens to any of them. The caller must End it. For a
// repeat, Add takes as long with any number of tallies; for new names it takes some 50 ns longer
// for each tally of the container, and nothing for those of others.
func (l *Log) Tally(container string) *Tally {
	t := &Tally{log: l, container: container, news: make(chan struct{}, 1),
		index: map[Summary]int{}, more: map[uint64]struct{}{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.calls[container]
	if c == nil {
		c = &calls{}
		l.calls[container] = c
	}
	c.report(len(c.pending)) // earlier lines are not for t
	c.tallies = append(c.tallies, t)
	return t
}

// Next waits for lines that are new since its last call, and returns them with the count that each
// has so far. Once a tally has its 64 lines, there are no new ones. The error is the context's.
// Only one goroutine may call Next, and not after End.
func (t *Tally) Next(ctx context.Context) ([]Summary, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if lines := t.fresh(); len(lines) > 0 {
			return lines, nil
		}
		select {
		case <-t.news:
		case <-ctx.Done():
		}
	}
}

func (t *Tally) fresh() []Summary {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	c := t.log.calls[t.container]
	if c == nil {
		return nil // ended
	}
	c.pass(len(c.pending))
	lines := slices.Clone(t.lines[t.told:])
	t.told = len(t.lines)
	if len(lines) == 0 && !slices.Contains(c.waiting, t) {
		c.waiting = append(c.waiting, t)
	}
	return lines
}

// wake never waits; the log's mutex is held.
func (t *Tally) wake() {
	select {
	case t.news <- struct{}{}:
	default:
	}
}

// End ends the tally and returns its lines, in the order in which they first occurred. There are at
// most 64; more is how many further names there were, where 1000 means at least that many. The
// lines are the caller's. Called again it returns nothing.
func (t *Tally) End() (lines []Summary, more int) {
	t.log.catchUp()
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if c := t.log.calls[t.container]; c != nil {
		c.report(len(c.pending))
		same := func(other *Tally) bool { return other == t }
		c.tallies, c.waiting = slices.DeleteFunc(c.tallies, same),
			slices.DeleteFunc(c.waiting, same)
		if len(c.tallies) == 0 {
			delete(t.log.calls, t.container)
		}
	}
	lines, more = t.lines, len(t.more)
	t.lines, t.index, t.more, t.told = nil, nil, nil, 0
	return lines, more
}

// add is called with the log's mutex held.
func (t *Tally) add(line Summary) {
	count := line.Count
	line.Count = 0
	i, known := t.index[line]
	switch {
	case known:
		t.lines[i].Count += count
	case len(t.lines) < maxLines:
		t.index[line] = len(t.lines)
		line.Count = count
		t.lines = append(t.lines, line)
	case len(t.more) < maxMore && !t.has(line.Name):
		t.more[maphash.String(t.log.seed, line.Name)] = struct{}{}
	}
}

// has reports whether a name has a line.
func (t *Tally) has(name string) bool {
	return slices.ContainsFunc(t.lines, func(line Summary) bool { return line.Name == name })
}
