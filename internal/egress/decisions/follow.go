package decisions

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"
)

// MaxFollowers bounds the followers of a log, for each of which Add does something.
const MaxFollowers = 32

// backlog is how many decisions may wait for a follower.
const backlog = 1024

// Follower returns each decision that matches its filter, one by one and in the order of Seq.
type Follower struct {
	log    *Log
	filter Filter
	heard  chan numbered // closed by Close
	count  uint64        // of all that matched; the log's mutex guards it
	last   uint64        // that Next has returned
}

// numbered is a decision with its number among those that matched.
type numbered struct {
	Decision
	number uint64
}

// Follow begins to follow. To see earlier decisions as well, call Recent after Follow: nothing is
// missed then, and what is added in between may be in both. The caller closes the follower. The
// error is of class ResourceExhausted: there are 32 followers already.
func (l *Log) Follow(filter Filter) (*Follower, error) {
	filter.scope = l.scope
	f := &Follower{log: l, filter: filter, heard: make(chan numbered, backlog)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.followers) >= MaxFollowers {
		return nil, fmt.Errorf(
			"cannot follow egress decisions: there are %d followers already, which is the most: %w",
			MaxFollowers, errdefs.ErrResourceExhausted)
	}
	l.followers = append(l.followers, f)
	return f, nil
}

// Next waits for the next decision, whose Count is 1, and returns it. If the follower was too slow,
// the oldest of 1024 waiting decisions gave way to newer ones: lost is how many did right before
// the one that is returned. The error is the context's, or io.EOF after Close. Only one goroutine
// may call Next.
func (f *Follower) Next(ctx context.Context) (d Decision, lost uint64, err error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, 0, err
	}
	select {
	case next, open := <-f.heard:
		if !open {
			return Decision{}, 0, io.EOF
		}
		lost, f.last = next.number-f.last-1, next.number
		return next.Decision, lost, nil
	case <-ctx.Done():
		return Decision{}, 0, ctx.Err()
	}
}

// Close ends the follower, also while Next waits. Called again it does nothing.
func (f *Follower) Close() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	at := slices.Index(f.log.followers, f)
	if at < 0 {
		return
	}
	f.log.followers = slices.Delete(f.log.followers, at, at+1)
	close(f.heard)
	for range f.heard { // what waits is dropped
	}
}

// offer is called with the log's mutex held, and so by one goroutine at a time.
func (f *Follower) offer(d *Decision) {
	if !f.filter.matches(d) {
		return
	}
	f.count++
	for {
		select {
		case f.heard <- numbered{*d, f.count}:
			return
		default:
		}
		select {
		case <-f.heard: // the oldest gives way
		default:
		}
	}
}
