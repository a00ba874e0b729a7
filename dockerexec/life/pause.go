package life

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
)

// Engine pauses and resumes containers. Both calls succeed if nothing runs in the container.
type Engine interface {
	Pause(ctx context.Context, id string) error
	// Resume ends a container that stays paused, and returns an error then. It also does if the
	// engine does not answer.
	Resume(ctx context.Context, id string) error
}

const (
	// maxHeld is how much longer a container may be held than it has run since, and restFor is how
	// long it runs when that is reached: callers that hold it one after the other, or overlap,
	// leave it half of the time.
	maxHeld = 3 * time.Second
	restFor = time.Second
)

// pause says who needs a container running or paused. All is under Life.mu.
type pause struct {
	users, holders int
	is             bool // Docker has it paused; written by who has Life.asking
	// Docker may have it otherwise: it was asked and has failed, or has resumed it
	doubt bool
	// a command may have begun in it: always, unless all begin with Life.Command
	ran     bool
	changed chan struct{} // closed, and recreated, when one of these or the state changes
	surplus time.Duration // how much longer it was held than it had run since, as of at
	at      time.Time
	rests   bool
}

// notify has those look again who wait.
func (p *pause) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// paused reports whether the container is to be paused now. One in which no command has begun is
// held by Command alone.
func (l *Life) paused() bool {
	return l.pause.users == 0 && (l.state == Frozen || l.pause.holders > 0 && l.pause.ran)
}

// Use keeps the container from being paused until done is called. It waits while the container is
// held. It thaws one that is frozen because it is idle, and a detached one that was found paused.
// The error is ErrPaused for any other frozen one, ErrLeft, the context's cause, or why it cannot
// be resumed: then it was ended.
func (l *Life) Use(ctx context.Context) (done func(), err error) {
	return l.use(ctx, func() error {
		if l.state == Frozen && l.reason == Requested {
			return ErrPaused
		}
		return nil
	})
}

// UseToSignal is Use for who must reach a detached container although it is paused on request,
// which ends the pause.
func (l *Life) UseToSignal(ctx context.Context) (done func(), err error) {
	return l.use(ctx, func() error { return nil })
}

// Visit is Use for what a call does not see: a container that is frozen because it is idle thaws
// for it, and is paused again when done is called. The error is also ErrPaused if it is frozen for
// another reason.
func (l *Life) Visit(ctx context.Context) (done func(), err error) {
	err = l.wait(ctx, func() (bool, error) {
		switch l.state {
		case Ready, Draining:
		case Frozen:
			if l.reason != Idle {
				return false, ErrPaused
			}
		default:
			return false, ErrLeft
		}
		return l.pause.holders == 0 || !l.pause.ran, nil
	}, func() { l.pause.users++ })
	if err != nil {
		return nil, err
	}
	if err := l.settle(ctx); err != nil {
		l.leave(&l.pause.users)
		return nil, err
	}
	return sync.OnceFunc(func() {
		l.leave(&l.pause.users)
		if l.Now().State == Frozen && l.settle(ctx) != nil {
			l.Do(Resume, nil)
			_ = l.settle(ctx) // Docker may still pause it
		}
	}), nil
}

func (l *Life) use(ctx context.Context, refused func() error) (done func(), err error) {
	err = l.wait(ctx, func() (bool, error) {
		if err := refused(); err != nil {
			return false, err
		}
		if l.state == Frozen && l.do(Resume, nil) == Refused {
			return false, ErrPaused // it was found so, and only a call has it taken over
		}
		switch l.state {
		case Starting, Ready, Draining:
			return l.pause.holders == 0 || !l.pause.ran, nil
		default:
			return false, ErrLeft
		}
	}, func() { l.pause.users++ })
	if err != nil {
		return nil, err
	}
	if err := l.settle(ctx); err != nil {
		l.leave(&l.pause.users)
		return nil, err
	}
	return l.doneUsing(), nil
}

// UseToRemove is Use for who removes the container: it must be Leaving, or Starting and be made
// once more. It may be paused still.
func (l *Life) UseToRemove(ctx context.Context) (done func(), err error) {
	err = l.wait(ctx, func() (bool, error) {
		return l.pause.holders == 0 || !l.pause.ran, nil
	}, func() {
		l.pause.users++
		l.pause.doubt = true // the engine resumes it to end it
	})
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		l.pause.doubt = true // also if what was asked for before has only been answered now
		l.mu.Unlock()
		l.leave(&l.pause.users)
	}), nil
}

func (l *Life) doneUsing() func() {
	return sync.OnceFunc(func() { l.leave(&l.pause.users) })
}

// Hold keeps the container paused until release is called. After an error, release must be called,
// too, unless it is nil. Hold waits while somebody is at the container, and while that rests from
// holders before. A container in which no command has begun is not paused: its first one waits. One
// in which nothing runs needs no pause.
func (l *Life) Hold(ctx context.Context) (release func() error, err error) {
	return l.hold(ctx, func() (bool, error) {
		return (l.pause.users == 0 || !l.pause.ran) && !l.pause.rests, nil
	})
}

// TryHold is Hold for a user of another container. It waits for nobody: while somebody is at the
// container, release is nil, because that one may wait for the caller's container.
func (l *Life) TryHold(ctx context.Context) (release func() error, err error) {
	release, err = l.hold(ctx, func() (bool, error) {
		if l.pause.users > 0 && l.pause.ran {
			return false, errUsed
		}
		// who holds it may wait for the other container
		return l.pause.holders > 0 || !l.pause.rests, nil
	})
	if errors.Is(err, errUsed) {
		return nil, nil
	}
	return release, err
}

var errUsed = errors.New("the container is used")

func (l *Life) hold(ctx context.Context,
	may func() (bool, error)) (release func() error, err error) {
	err = l.wait(ctx, may, func() { l.pause.holders++ })
	if err != nil {
		return nil, err
	}
	err = l.settle(ctx)
	release = sync.OnceValue(func() error {
		l.leave(&l.pause.holders)
		return l.settle(ctx)
	})
	if err != nil { // its class would be taken for that of the other container
		err = fmt.Errorf("cannot pause container %.12s: %v", l.ID(), err)
	}
	return release, err
}

// Freeze pauses the container if it is idle, until the next call. It waits while somebody is at it,
// and reports whether it is frozen at the end. After an error it goes on as before.
func (l *Life) Freeze(ctx context.Context) (frozen bool, err error) {
	if l.Do(Freeze, nil) == Refused {
		return false, nil
	}
	return l.sleep(ctx)
}

// Pause pauses a detached container until Resume: uses are refused from now on, and the present
// ones are waited for. The error is ErrLeft if it does not run, and errdefs.ErrConflict if it was
// resumed meanwhile.
func (l *Life) Pause(ctx context.Context) error {
	if l.Do(Pause, nil) == Refused {
		return ErrLeft
	}
	frozen, err := l.sleep(ctx)
	if err == nil && !frozen {
		err = fmt.Errorf("it was resumed meanwhile: %w", cerrdefs.ErrConflict)
	}
	return err
}

// sleep has Docker pause a container that is Frozen. It stays Frozen unless somebody thaws it
// meanwhile; after an error it goes on.
func (l *Life) sleep(ctx context.Context) (frozen bool, err error) {
	err = l.wait(ctx, func() (bool, error) {
		return l.state != Frozen || l.pause.users == 0, nil
	}, func() {})
	if err == nil {
		err = l.settle(ctx)
	}
	if err != nil {
		l.Do(Resume, nil)
		return false, errors.Join(err, l.settle(ctx))
	}
	return l.Now().State == Frozen, nil
}

// Resume ends a pause that was asked for, and returns when the container runs. It does nothing if
// it runs. The error is ErrLeft if it does not exist, or why it cannot be resumed: then it was
// ended, unless the engine does not answer.
func (l *Life) Resume(ctx context.Context) error {
	done, err := l.UseToSignal(ctx)
	if err != nil {
		return err
	}
	done()
	return nil
}

// Thawing is the thawing of a frozen container for a call.
type Thawing struct {
	done chan struct{}
	err  error // when done is closed
}

// Thaw resumes a container that Join has found Frozen. What is sent to its agent meanwhile waits
// there, so a command begins when the container resumes, and not when Docker has said so.
func (l *Life) Thaw(ctx context.Context, t *Thawing) error {
	done, err := l.Use(ctx)
	if err == nil {
		done()
	}
	l.mu.Lock()
	if l.thawing == t {
		l.thawing = nil
	}
	l.mu.Unlock()
	t.err = err
	close(t.done)
	return err
}

// Done is closed when the container has resumed, or cannot.
func (t *Thawing) Done() <-chan struct{} { return t.done }

// Explain returns the error of a session that broke, with the reason why its container did not
// resume. It waits for that until ctx ends.
func (t *Thawing) Explain(ctx context.Context, err error) error {
	select {
	case <-t.done:
	case <-ctx.Done():
		return err
	}
	if t.err != nil {
		return fmt.Errorf("%w (%v)", err, t.err)
	}
	return err
}

// Resumed notes that Docker has resumed the container, for whomever. Docker may tell so late, when
// it is paused again: so what is taken for paused is asked for anew the next time.
func (l *Life) Resumed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause.doubt = l.pause.doubt || l.pause.is
}

// Seen compares with whether the engine's list has the container paused, and reports whether that
// differs: then Mend is due. It may be late.
func (l *Life) Seen(paused bool) (differs bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	differs = paused != l.paused()
	l.pause.doubt = l.pause.doubt || differs
	return differs
}

// Mend has the container paused, or go on, as it should be, after an error or Seen.
func (l *Life) Mend(ctx context.Context) error { return l.settle(ctx) }

// settle has Docker pause or resume the container if that is not so yet.
func (l *Life) settle(ctx context.Context) error {
	l.asking <- struct{}{}
	defer func() { <-l.asking }()
	l.mu.Lock()
	id, want := l.id, l.paused()
	is, doubt := l.pause.is, l.pause.doubt
	l.mu.Unlock()
	if id == "" || want == is && !doubt {
		return nil
	}
	var err error
	if want {
		err = l.engine.Pause(ctx, id)
	} else {
		err = l.engine.Resume(context.WithoutCancel(ctx), id)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause.is, l.pause.doubt = want && err == nil, err != nil
	return err
}

// wait does something once may allows it. may and do are called with Life.mu held. The error is
// may's, or the context's cause.
func (l *Life) wait(ctx context.Context, may func() (bool, error), do func()) error {
	for {
		l.mu.Lock()
		rested := l.count(time.Now())
		ok, err := may()
		if ok && err == nil {
			do()
		}
		changed := l.pause.changed
		l.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-rested:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *Life) leave(count *int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(time.Now())
	*count--
	l.pause.notify()
}

// count counts the time until now, and returns a channel that says when the container has rested.
func (l *Life) count(now time.Time) (rested <-chan time.Time) {
	p := &l.pause
	passed := now.Sub(p.at)
	p.at = now
	if p.holders > 0 && l.state != Frozen { // nothing would run in a frozen one anyway
		p.surplus += passed
	} else {
		p.surplus = max(p.surplus-passed, 0)
	}
	p.rests = p.surplus > maxHeld || p.rests && p.surplus > maxHeld-restFor
	if p.rests && p.holders == 0 {
		rested = time.After(p.surplus - (maxHeld - restFor))
	}
	return rested
}
