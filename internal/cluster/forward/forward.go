// Package forward has any host of a cluster answer any call: one that does not hold the call's user sends it to the host
// that does, over TLS that both sides authenticate with certificates, with who the caller is, the request's id and the
// seat's epoch. A host for which that epoch has passed says so before it has begun anything, and only then is the call sent
// anew, once.
//
// forward.go decides where a call is answered, calls.go counts those that are answered here, proxy.go sends the others,
// listen.go lets hosts in alone, and identity.go is what they tell each other about a caller.
package forward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster"
)

// Config is what a Router needs; all fields must be set.
type Config struct {
	Cluster *cluster.Cluster
	// MayStart is nil while this host may do something for a user.
	MayStart func(user string) error
	// Take is called before the first call of a user whom this host holds is let in, and Release when it holds the user no
	// more: it ends what runs for the user, and returns when that has ended.
	Take    func(user string) error
	Release func(ctx context.Context, user string) error
	// Certificates are this host's, and whom it believes.
	Certificates Certificates
	Log          zerolog.Logger
}

// Router says where calls are answered. It is safe for concurrent use.
type Router struct {
	cfg Config

	mu       sync.Mutex
	users    map[string]*user
	away     map[*away]bool // calls that other hosts answer
	nodes    map[string]*peer
	count    Counts
	stopping bool
}

// Counts are of calls since the start.
type Counts struct {
	Forwarded, Lost, Taken uint64
	Took                   time.Duration // of those forwarded, until they were answered
}

// New makes a Router. Run keeps it true.
func New(cfg Config) *Router {
	return &Router{cfg: cfg, users: map[string]*user{}, away: map[*away]bool{}, nodes: map[string]*peer{}}
}

// Counts are those of now.
func (r *Router) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// patience is how long a call waits for a host that does not answer, or for another to take over.
const patience = 20 * time.Second

// Entry is for the calls of callers: they are answered here or elsewhere.
type Entry struct {
	*Router
	// Wire is which calls they are.
	Wire string
}

// Route finds out where a call of a user's is answered. Where that is elsewhere, it is, and done is nil. Else it is this
// host's to answer until done is called; ctx ends when it may not go on. A call that only looks claims no seat.
func (e Entry) Route(w http.ResponseWriter, req *http.Request, caller access.Caller, name string, looks bool) (ctx context.Context, done func(), err error) {
	if _, held := e.cfg.Cluster.Seat(name); looks && !held {
		return req.Context(), func() {}, nil
	}
	ctx, cancel := context.WithTimeout(req.Context(), patience)
	defer cancel()
	sent := &sending{wire: e.Wire}
	for moved := 0; ; {
		seat, err := e.cfg.Cluster.Hold(ctx, name)
		if errors.Is(err, cluster.ErrNotFenced) && wait(ctx, 100*time.Millisecond) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if seat.Host == e.cfg.Cluster.Host() {
			sent.restore(req)
			running, done, again, err := e.enter(ctx, req.Context(), seat)
			if again && err == nil {
				continue
			}
			return running, done, err
		}
		err = e.send(ctx, w, req, caller, seat, sent)
		switch {
		case errors.Is(err, errMoved) && moved == 0:
			moved++
			e.changed(ctx, seat) // it is not known here yet
		case errors.Is(err, errMoved):
			return nil, nil, fmt.Errorf("user %q moves from host to host: ask again: %w", name, cerrdefs.ErrUnavailable)
		case errors.Is(err, errNotReached): // nothing was sent
			waits := e.changed(ctx, seat)
			if err := e.cfg.Cluster.Answers(req.Context()); err != nil { // then no host can take over
				return nil, nil, err
			}
			if !waits {
				return nil, nil, fmt.Errorf("host %q, which holds the user, does not answer, and no other has taken over yet: ask again: %w", seat.Host, cerrdefs.ErrUnavailable)
			}
		default:
			return nil, nil, err
		}
	}
}

// changed waits a little for a seat to become another's, and is false when ctx has ended.
func (r *Router) changed(ctx context.Context, seat cluster.Seat) bool {
	for range 250 {
		if now, ok := r.cfg.Cluster.Seat(seat.User); !ok || now != seat {
			return true
		}
		if !wait(ctx, 2*time.Millisecond) {
			return false
		}
	}
	return true
}

// Await waits until what was known anywhere of a sandbox when it is called is known here.
func (e Entry) Await(ctx context.Context, id string) error {
	_, err := e.cfg.Cluster.Read(ctx, recordsOf[e.Wire], id)
	return err
}

// Names are those of all sandboxes of the wire's that there are, of which all is known here when it returns.
func (e Entry) Names(ctx context.Context) (map[string]bool, error) {
	return e.cfg.Cluster.Names(ctx, recordsOf[e.Wire])
}

// Inbound is for the calls that other hosts send: they are answered here or not at all.
type Inbound struct{ *Router }

// Route is as that of Entry, but the call is never sent on: what this host does not hold is misdirected.
func (i Inbound) Route(w http.ResponseWriter, req *http.Request, _ access.Caller, name string, _ bool) (context.Context, func(), error) {
	about, err := read(req)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(req.Context(), patience)
	defer cancel()
	if err := i.cfg.Cluster.Reached(ctx, about.Epoch); err != nil {
		return nil, nil, err
	}
	for {
		seat, ok := i.cfg.Cluster.Seat(name)
		if !ok || seat.Host != i.cfg.Cluster.Host() || seat.Epoch != about.Epoch || about.User != name {
			w.Header().Set(movedHeader, "true")
			w.WriteHeader(http.StatusMisdirectedRequest)
			return nil, nil, nil
		}
		running, done, again, err := i.enter(ctx, req.Context(), seat)
		if fenced := (fencedError{}); errors.As(err, &fenced) {
			w.Header().Set(fencedHeader, "true")
			w.WriteHeader(http.StatusMisdirectedRequest)
			return nil, nil, nil
		}
		if !again || err != nil {
			return running, done, err
		}
	}
}

// movedHeader is of an answer that nothing was begun, as this host does not hold the user: what a user's program answers is
// something else.
const movedHeader = "X-Daycare-Moved"

// fencedHeader is of an answer that nothing was begun, by a host that may do nothing now: another takes the user over.
const fencedHeader = "X-Daycare-Fenced"

// Await is not for calls that others send: whoever sent them has looked.
func (i Inbound) Await(context.Context, string) error { return nil }

func (r *Router) counted(change func(*Counts)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.count)
}

// Run follows the seats and the hosts until ctx ends.
func (r *Router) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { r.probe(ctx) })
	turns := make(chan struct{}, takeoversAtOnce)
	r.cfg.Cluster.Watch(ctx, func(s cluster.Seat) {
		r.recall(s)
		r.mu.Lock()
		u := r.users[s.User]
		r.mu.Unlock()
		if u == nil && s.Host != r.cfg.Cluster.Host() {
			return
		}
		running.Go(func() {
			for done := false; !done && ctx.Err() == nil; {
				select {
				case turns <- struct{}{}:
				case <-ctx.Done():
					return
				}
				done = r.follow(ctx, s.User)
				<-turns
				if !done {
					wait(ctx, takeAgain)
				}
			}
		})
	})
}

// takeAgain is how long a user is left alone who could not be taken over.
const takeAgain = time.Second

// takeoversAtOnce is how many users are taken over at a time without a call that waits for them.
const takeoversAtOnce = 4
