// Package forward lets every host of a cluster answer every call: a host that does not hold the
// call's user sends the call to the host that does, over TLS that both sides authenticate with
// certificates. With the call go the caller's identity, the request's id and the seat's epoch. A
// host that no longer has the seat of that epoch says so before it has begun anything; only then is
// the call sent again, once.
//
// forward.go decides where a call is answered, calls.go counts the calls answered here, proxy.go
// sends the others, gather.go and look.go ask other hosts, listen.go admits only hosts, and
// identity.go has what hosts tell each other about a caller.
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

// Local is what runs for users on this host.
type Local interface {
	// MayStart returns nil while this host may do something for a user.
	MayStart(user string) error
	// Take is called before the first call of a user whom this host holds is admitted.
	Take(user string) error
	// Release is called when this host does not hold the user any more. It ends everything that
	// runs for the user, and returns when it has ended.
	Release(ctx context.Context, user string) error
	// Busy reports whether something of a user runs here that ends with Release and that no other
	// host starts again.
	Busy(user string) bool
}

// Config configures a Router; all fields must be set.
type Config struct {
	Cluster *cluster.Cluster
	Local   Local

	// Certificates are this host's own certificate and the authority it trusts.
	Certificates Certificates
	Log          zerolog.Logger
}

// Router decides where calls are answered. It is safe for concurrent use.
type Router struct {
	cfg Config

	mu       sync.Mutex
	users    map[string]*user
	away     map[*away]bool // calls that other hosts answer
	nodes    map[string]*peer
	count    Counts
	stopping bool
	ended    chan struct{} // closed when Run returns
}

// Counts count forwarded calls, lost calls and taken users since the start.
type Counts struct {
	Forwarded, Lost, Taken uint64
	Took                   time.Duration // sum over the forwarded calls, until they were answered
}

// New returns a Router. Run keeps it current.
func New(cfg Config) *Router {
	return &Router{cfg: cfg, users: map[string]*user{}, away: map[*away]bool{},
		nodes: map[string]*peer{}, ended: make(chan struct{})}
}

// Counts returns the current counts.
func (r *Router) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

// patience is how long a call waits for a host that does not answer, or for another to take over.
const patience = 20 * time.Second

// Entry routes the calls of callers: they are answered here or elsewhere.
type Entry struct {
	*Router
	// Wire is the wire of these calls: E2B, or empty for the API's.
	Wire string
}

// Route finds out which host answers a call of a user. If another host has answered it, done is
// nil. Otherwise this host must answer it and then call done; ctx ends if the call may not go on. A
// call that only looks claims no seat.
func (e Entry) Route(w http.ResponseWriter, req *http.Request, caller access.Caller, name string,
	looks bool) (ctx context.Context, done func(), err error) {
	if _, held := e.cfg.Cluster.Seat(name); looks && !held {
		return req.Context(), func() {}, nil
	}
	ctx, cancel := context.WithTimeout(req.Context(), patience)
	defer cancel()
	sent := &sending{wire: e.Wire}
	var lost error // why the user waits; nil while that is not for a lost host
	for moved := 0; ; {
		seat, err := e.cfg.Cluster.Hold(ctx, name)
		if errors.Is(err, cluster.ErrNotFenced) {
			if lost = err; cluster.Wait(ctx, 100*time.Millisecond) {
				continue
			}
		}
		if err != nil {
			if lost != nil && ctx.Err() != nil { // it ended while etcd was asked once more
				err = lost
			}
			return nil, nil, err
		}
		lost = nil
		if seat.Host == e.cfg.Cluster.Host() {
			sent.restore(req)
			running, done, again, err := e.admit(ctx, w, req, seat)
			if again && err == nil {
				continue
			}
			return running, done, err
		}
		err = e.send(ctx, w, req, caller, seat, sent)
		switch {
		case errors.Is(err, errMoved) && moved == 0:
			moved++
			e.changed(ctx, seat) // the new seat is not known here yet
		case errors.Is(err, errMoved):
			return nil, nil, fmt.Errorf("user %q keeps moving between hosts: ask again: %w", name,
				cerrdefs.ErrUnavailable)
		case errors.Is(err, errNotReached): // nothing was sent
			waits := e.changed(ctx, seat)
			if err := e.cfg.Cluster.Answers(req.Context()); err != nil { // without etcd, no host can take over
				return nil, nil, err
			}
			if !waits {
				return nil, nil,
					fmt.Errorf("host %q, which holds the user, does not answer, and no other has taken over yet: ask again: %w",
						seat.Host, cerrdefs.ErrUnavailable)
			}
		default:
			return nil, nil, err
		}
	}
}

// endedGrace is how long the rest of an ended call's answer may take, with the command's own end.
// It is less than patience, for which the end of calls is waited.
const endedGrace = patience / 2

// admit is enter for a call that is answered to w. A call that is ended has endedGrace for the rest
// of its answer: its handler does not wait for a caller who reads nothing.
func (r *Router) admit(waiting context.Context, w http.ResponseWriter, req *http.Request,
	seat cluster.Seat) (_ context.Context, done func(), again bool, err error) {
	ctx, left, again, err := r.enter(waiting, req.Context(), seat)
	if left == nil {
		return nil, nil, again, err
	}
	control, bounded := http.NewResponseController(w), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = control.SetWriteDeadline(time.Now().Add(endedGrace))
		close(bounded)
	})
	return ctx, sync.OnceFunc(func() {
		if !stop() {
			<-bounded
			if w.Header().Get("Connection") != "close" { // otherwise there may be more calls on the connection
				_ = control.SetWriteDeadline(time.Time{})
			}
		}
		left()
	}), again, err
}

// changed waits up to half a second for a seat to change, and reports false if ctx has ended.
func (r *Router) changed(ctx context.Context, seat cluster.Seat) bool {
	for range 250 {
		if now, ok := r.cfg.Cluster.Seat(seat.User); !ok || now != seat {
			return true
		}
		if !cluster.Wait(ctx, 2*time.Millisecond) {
			return false
		}
	}
	return true
}

// Await waits until everything that any host recorded of a sandbox before the call is known here.
func (e Entry) Await(ctx context.Context, id string) error {
	_, err := e.cfg.Cluster.Read(ctx, recordsOf[e.Wire], id)
	return err
}

// Names returns the names of all sandboxes of the wire. When it returns, their records are known
// here.
func (e Entry) Names(ctx context.Context) (map[string]bool, error) {
	return e.cfg.Cluster.Names(ctx, recordsOf[e.Wire])
}

// Inbound routes the calls that other hosts send: they are answered here or not at all.
type Inbound struct{ *Router }

// Route is like Entry.Route, but never sends the call on: a call for a user whom this host does not
// hold is misdirected.
func (i Inbound) Route(w http.ResponseWriter, req *http.Request, _ access.Caller, name string,
	_ bool) (context.Context, func(), error) {
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
		if !ok || seat.Host != i.cfg.Cluster.Host() || seat.Epoch != about.Epoch ||
			about.User != name {
			w.Header().Set(movedHeader, "true")
			w.WriteHeader(http.StatusMisdirectedRequest)
			return nil, nil, nil
		}
		running, done, again, err := i.admit(ctx, w, req, seat)
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

// movedHeader marks an answer that says that nothing was begun, because this host does not hold the
// user. It tells such an answer from one of a user's program.
const movedHeader = "X-Daycare-Moved"

// fencedHeader marks an answer that says that nothing was begun, because this host may do nothing
// now: another takes over.
const fencedHeader = "X-Daycare-Fenced"

// Await does nothing: the host that sent the call has waited.
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
	context.AfterFunc(ctx, func() { close(r.ended) })
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
					cluster.Wait(ctx, takeAgain)
				}
			}
		})
	})
}

// takeAgain is the pause before another try to take over a user who could not be taken over.
const takeAgain = time.Second

// takeoversAtOnce is how many users are taken over at a time without a call that waits for it.
const takeoversAtOnce = 4
