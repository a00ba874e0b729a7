// Package attach is what stands between a running command and its caller: the stdin, signals and sizes that
// go in, and for commands that go on when their caller's connection is lost, the end of what they have
// printed and how they ended, for whoever comes back.
//
// stdin.go and input.go are what goes in; hub.go has the commands that go on, exec.go one of them, view.go
// who looks at it, and ring.go its output. All of it is in memory and bounded.
package attach

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/quota"
)

// Config bounds a Hub. Keep must be set.
type Config struct {
	// Quotas bound how many commands there may be, those that have ended included; nil for no bounds. The
	// oldest that has ended makes room for a new one.
	Quotas *quota.Ledger
	// Keep is how long one that has ended is kept.
	Keep time.Duration
}

// Hub has the commands that go on when their caller's connection is lost. Result is how one ends. It is safe
// for concurrent use.
type Hub[Result any] struct {
	cfg    Config
	ctx    context.Context // ends with Shutdown
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	mu     sync.Mutex
	closed bool
	execs  map[string]*Exec[Result]
}

// NewHub makes a Hub without commands.
func NewHub[Result any](cfg Config) *Hub[Result] {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Hub[Result]{cfg: cfg, ctx: ctx, cancel: cancel, execs: map[string]*Exec[Result]{}}
}

// Command is what is known of a command before it runs.
type Command struct {
	User  string      // whose it alone is
	Token quota.Token // by which it was asked for
	Text  string      // for people
	// Terminal says that it has one, and Stdin that its stdin comes from Input.
	Terminal, Stdin bool
}

// Start runs a command in the background: run is to call the methods of Exec that are for it, and returns
// when the command has ended. One that ends before it has called Started is forgotten at once. The error is
// of class ResourceExhausted if there are too many, or Unavailable after Shutdown.
func (h *Hub[Result]) Start(c Command, run func(context.Context, *Exec[Result]) (Result, error)) (*Exec[Result], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("cannot run commands: %w", errStopping)
	}
	give, err := h.makeRoom(c)
	if err != nil {
		return nil, fmt.Errorf("cannot run the command: %w", err)
	}
	e := newExec[Result]("x-"+strings.ToLower(rand.Text()), c)
	e.give = give
	h.execs[e.ID] = e
	h.work.Go(func() {
		result, err := run(h.ctx, e)
		if !e.finish(result, err) {
			h.forget(e.ID)
			return
		}
		id := e.ID // and not e: one that has made room for others is not to be kept by its timer
		time.AfterFunc(h.cfg.Keep, func() { h.forget(id) })
	})
	return e, nil
}

var errStopping = fmt.Errorf("the service is shutting down: %w", errdefs.ErrUnavailable)

// makeRoom takes the place of a new command. Where there are too many it forgets what has ended; h.mu is held.
func (h *Hub[Result]) makeRoom(c Command) (give func(), err error) {
	for {
		give, err := h.cfg.Quotas.Take(quota.Account{User: c.User, Token: c.Token}, quota.DetachedExecs, 1)
		full, is := errors.AsType[*quota.Exceeded](err)
		if !is {
			return give, err
		}
		if !h.forgetOldest(h.those(func(e *Exec[Result]) bool {
			return full.Scope == quota.Total || full.Scope == quota.User && e.command.User == full.Name ||
				full.Scope == quota.OfToken && e.command.Token.Name == full.Name
		})) {
			return nil, err
		}
	}
}

// those are the commands that match, the oldest first; h.mu is held.
func (h *Hub[Result]) those(match func(*Exec[Result]) bool) []*Exec[Result] {
	var list []*Exec[Result]
	for _, e := range h.execs {
		if match(e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *Exec[Result]) int { return cmp.Or(a.begun.Compare(b.begun), cmp.Compare(a.ID, b.ID)) })
	return list
}

func (h *Hub[Result]) forgetOldest(list []*Exec[Result]) bool {
	for _, e := range list {
		if e.hasEnded() {
			h.drop(e.ID)
			return true
		}
	}
	return false
}

func (h *Hub[Result]) forget(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(id)
}

// drop takes a command out and gives its place back; h.mu is held.
func (h *Hub[Result]) drop(id string) {
	if e := h.execs[id]; e != nil {
		e.give()
		delete(h.execs, id)
	}
}

// Get finds a user's command. Another user's is not found.
func (h *Hub[Result]) Get(user, id string) (*Exec[Result], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e := h.execs[id]; e != nil && e.command.User == user {
		return e, nil
	}
	return nil, errs.NotFound("there is no exec %q: it ended more than %g minutes ago, made room for others, or never was one with detachOnDisconnect", id, h.cfg.Keep.Minutes())
}

// List returns a user's commands, the oldest first.
func (h *Hub[Result]) List(user string) []*Exec[Result] {
	h.mu.Lock()
	defer h.mu.Unlock()
	if user == "" {
		return nil
	}
	return h.those(func(e *Exec[Result]) bool { return e.command.User == user })
}

// Shutdown ends all commands and waits for them.
func (h *Hub[Result]) Shutdown() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel(errStopping)
	h.work.Wait()
}

// ErrTaken is what a View ends with when another has taken its place.
var ErrTaken = errs.Conflict("another caller has attached to this exec and takes the place of this one")
