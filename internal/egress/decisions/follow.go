package decisions

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
)

// MaxFollowers bounds what Add does for them.
const MaxFollowers = 32

// backlog is how many decisions wait for a follower.
const backlog = 1024

// Follower returns each decision that matches its filter, one by one and in the order of Seq.
type Follower struct {
	log    *Log
	filter Filter
	wake   chan struct{} // holds one when there is something to take; closed by Close

	// The log's mutex guards these.
	waiting      []Decision // a ring: count of them from first on
	first, count int
	lost         uint64 // before the first
	closed       bool
}

// Follow begins to follow. To see earlier decisions as well, call Recent after Follow: nothing is
// missed then, and what is added in between may be in both. The caller closes the follower. The error
// is of class ResourceExhausted: 32 follow already.
func (l *Log) Follow(filter Filter) (*Follower, error) {
	filter.scope = l.scope
	f := &Follower{log: l, filter: filter, wake: make(chan struct{}, 1), waiting: make([]Decision, backlog)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.followers) >= MaxFollowers {
		return nil, fmt.Errorf("cannot follow egress decisions: %d follow them already, which is the most: %w",
			MaxFollowers, errdefs.ErrResourceExhausted)
	}
	l.followers = append(l.followers, f)
	return f, nil
}

// Next returns the next decision, whose Count is 1, and waits for it. If the follower was too slow, the
// oldest of 1024 decisions that waited gave way to newer ones: lost is how many did right before the
// one that is returned. The error is the context's, or io.EOF after Close. Next is for one goroutine.
func (f *Follower) Next(ctx context.Context) (d Decision, lost uint64, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return Decision{}, 0, err
		}
		d, lost, ok, err := f.take()
		if ok || err != nil {
			return d, lost, err
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
		}
	}
}

// Close ends the follower, also while Next waits. Called again it does nothing.
func (f *Follower) Close() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	f.waiting, f.count = nil, 0
	f.log.followers = slices.DeleteFunc(f.log.followers, func(other *Follower) bool { return other == f })
	close(f.wake)
}

// take returns the oldest decision that waits, if any does.
func (f *Follower) take() (d Decision, lost uint64, ok bool, err error) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	if f.closed {
		return d, 0, false, io.EOF
	}
	if f.count == 0 {
		return d, 0, false, nil
	}
	d, lost = f.waiting[f.first], f.lost
	f.drop()
	f.lost = 0
	return d, lost, true, nil
}

// offer is called with the log's mutex held.
func (f *Follower) offer(d *Decision) {
	if !f.filter.matches(d) {
		return
	}
	if f.count == backlog {
		f.drop()
		f.lost++
	}
	f.waiting[(f.first+f.count)%backlog] = *d
	f.count++
	if f.count == 1 {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

func (f *Follower) drop() {
	f.waiting[f.first] = Decision{}
	f.first = (f.first + 1) % backlog
	f.count--
}
