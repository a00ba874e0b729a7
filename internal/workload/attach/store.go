// Package attach connects a running command and its caller. It carries the stdin, signals and
// terminal sizes that go in. For commands that go on when their caller's connection is lost, it
// keeps both ends of what they have printed and how they ended, for a caller that comes back.
//
// stdin.go and input.go have what goes in; store.go has the commands that go on, exec.go one of
// them, attachment.go the caller that is attached to it, and ring.go its output. All of it is in
// memory and bounded.
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

// Config bounds a Store. Keep must be set.
type Config struct {
	// Quotas bound how many commands there may be, including those that have ended; nil for no
	// bounds. An ended command makes room for a new one: the oldest of the user who has the most.
	Quotas *quota.Ledger
	// Keep is how long a command that has ended is kept.
	Keep time.Duration
}

// Store holds the commands that go on when their caller's connection is lost. Result says how a
// command ended. A Store is safe for concurrent use.
type Store[Result any] struct {
	cfg    Config
	ctx    context.Context // ends with Shutdown
	cancel context.CancelCauseFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	execs map[string]*Exec[Result]
}

// NewStore makes a Store without commands.
func NewStore[Result any](cfg Config) *Store[Result] {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Store[Result]{cfg: cfg, ctx: ctx, cancel: cancel, execs: map[string]*Exec[Result]{}}
}

// Command is what is known about a command before it runs.
type Command struct {
	User  string      // the user that it belongs to
	Token quota.Token // the token of the caller that asked for it
	Text  string      // for people
	// Terminal says that it has a terminal, and Stdin that its stdin comes from Input.
	Terminal, Stdin bool
}

func (c Command) account() quota.Account { return quota.Account{User: c.User, Token: c.Token} }

// NewID returns the id of a new exec, which cannot be guessed.
func NewID() string { return "x-" + strings.ToLower(rand.Text()) }

// Start runs a command in the background. run calls the methods of Exec that are for it, and
// returns when the command has ended. A command that ends before Started is called is forgotten at
// once. The error is of class ResourceExhausted if there are too many commands, or Unavailable
// after Shutdown.
func (s *Store[Result]) Start(c Command,
	run func(context.Context, *Exec[Result]) (Result, error)) (*Exec[Result], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, fmt.Errorf("cannot run commands: %w", errStopping)
	}
	give, err := s.makeRoom(c)
	if err != nil {
		return nil, fmt.Errorf("cannot run the command: %w", err)
	}
	e := newExec[Result](NewID(), c)
	e.give = give
	s.execs[e.ID] = e
	s.work.Go(func() {
		result, err := run(s.ctx, e)
		if !e.finish(result, err) {
			s.forget(e.ID)
			return
		}
		id := e.ID // not e: the timer must not keep an exec in memory that has made room for others
		time.AfterFunc(s.cfg.Keep, func() { s.forget(id) })
	})
	return e, nil
}

var errStopping = fmt.Errorf("the service is shutting down: %w", errdefs.ErrUnavailable)

// makeRoom takes a place for a new command. If there are too many, it forgets ended ones; s.mu is
// held.
func (s *Store[Result]) makeRoom(c Command) (give func(), err error) {
	for {
		give, err := s.cfg.Quotas.Take(c.account(), quota.DetachedExecs, 1)
		full, is := errors.AsType[*quota.Exceeded](err)
		if !is {
			return give, err
		}
		if !s.forgetOne(c.User, s.matching(func(e *Exec[Result]) bool {
			return full.IsAbout(e.command.account())
		})) {
			return nil, err
		}
	}
}

// matching returns the commands that match, the oldest first; s.mu is held.
func (s *Store[Result]) matching(match func(*Exec[Result]) bool) []*Exec[Result] {
	var list []*Exec[Result]
	for _, e := range s.execs {
		if match(e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *Exec[Result]) int {
		return cmp.Or(a.begun.Compare(b.begun), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// forgetOne forgets an ended command of a list to make room for a new one of a user's, and reports
// whether there was one. It takes the oldest of the user who has the most in the list, counting the
// new one, so that whoever has many takes nothing from those who have few; s.mu is held.
func (s *Store[Result]) forgetOne(user string, list []*Exec[Result]) bool {
	// In halves, so that the user's own goes where others have as many.
	has := map[string]int{user: 2 + 1}
	for _, e := range list {
		has[e.command.User] += 2
	}
	ended := slices.DeleteFunc(list, func(e *Exec[Result]) bool { return !e.hasEnded() })
	if len(ended) == 0 {
		return false
	}
	s.drop(slices.MaxFunc(ended, func(a, b *Exec[Result]) int { // the first of several
		return cmp.Compare(has[a.command.User], has[b.command.User])
	}).ID)
	return true
}

func (s *Store[Result]) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(id)
}

// drop removes a command and gives its place back; s.mu is held.
func (s *Store[Result]) drop(id string) {
	if e := s.execs[id]; e != nil {
		e.give()
		delete(s.execs, id)
	}
}

// Get finds a user's command. A command of another user is not found.
func (s *Store[Result]) Get(user, id string) (*Exec[Result], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.execs[id]; e != nil && e.command.User == user {
		return e, nil
	}
	return nil, errs.NotFound(
		"there is no exec %q: it ended more than %g minutes ago, made room for others, or was not started with detachOnDisconnect",
		id, s.cfg.Keep.Minutes())
}

// List returns a user's commands, the oldest first.
func (s *Store[Result]) List(user string) []*Exec[Result] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if user == "" {
		return nil
	}
	return s.matching(func(e *Exec[Result]) bool { return e.command.User == user })
}

// Drop forgets a user's commands. It does not end them.
func (s *Store[Result]) Drop(user string) {
	for _, e := range s.List(user) {
		s.forget(e.ID)
	}
}

// Wait waits for the end of all commands that run now. It reports false if ctx ends first.
func (s *Store[Result]) Wait(ctx context.Context) bool {
	s.mu.Lock()
	all := s.matching(func(*Exec[Result]) bool { return true })
	s.mu.Unlock()
	for _, e := range all {
		select {
		case <-e.done:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Shutdown ends all commands and waits for them.
func (s *Store[Result]) Shutdown() {
	s.mu.Lock() // so that none starts after that
	s.cancel(errStopping)
	s.mu.Unlock()
	s.work.Wait()
}

// ErrReplaced is what an Attachment ends with when another one has taken its place.
var ErrReplaced = errs.Conflict(
	"another caller has attached to this exec and has taken the place of this one")
