package forward

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/cluster"
)

// user is a user whom this host holds or has held.
type user struct {
	taking sync.Mutex // held while the user is taken over or given up
	epoch  int64      // of the seat that was taken over; 0 for none, or partly
	tried  bool       // a take has begun since the last release: something of the user may be here

	// Under Router.mu.
	calls   map[*call]bool
	leaving chan struct{} // closed when the user has left, or stays after all; nil while the user is not leaving
}

// partly is the epoch of a user of whom something was released: take releases the rest before it
// takes the user over anew.
const partly = -1

type call struct{ end context.CancelCauseFunc }

func (r *Router) user(name string) *user {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.users[name]
	if u == nil {
		u = &user{calls: map[*call]bool{}}
		r.users[name] = u
	}
	return u
}

// take takes a user over, once for each seat.
func (r *Router) take(name string, u *user, epoch int64) error {
	u.taking.Lock()
	defer u.taking.Unlock()
	if u.epoch == epoch {
		return nil
	}
	if seat, here := r.seated(name); !here || seat.Epoch != epoch { // it was given up meanwhile
		return errNoSeat
	}
	if u.epoch != 0 { // something of an earlier seat of this host is left
		if err := r.cfg.Local.Release(context.Background(), name); err != nil {
			return err
		}
		u.epoch = 0
	}
	u.tried = true
	if err := r.cfg.Local.Take(name); err != nil {
		return err
	}
	u.epoch = epoch
	r.counted(func(c *Counts) { c.Taken++ })
	return nil
}

// follow takes a user over or gives the user up, as the seat is now. It reports false if it must be
// tried again.
func (r *Router) follow(ctx context.Context, name string) bool {
	seat, here := r.seated(name)
	u := r.user(name) // afterwards, as forget does not forget a user who is here
	if here {
		err := r.take(name, u, seat.Epoch)
		if errors.Is(err, errNoSeat) {
			return false
		}
		if err != nil {
			r.cfg.Log.Error().Err(err).Str("user", name).
				Msg("cannot take over a user yet; trying again")
			return false
		}
		return true
	}
	r.endCalls(name,
		fmt.Errorf("this host does not hold the user any more, so the call was ended; it is not repeated: %w",
			cerrdefs.ErrUnavailable))
	ending, cancel := context.WithTimeout(ctx, patience)
	r.idle(ending, name) // otherwise a call could start something after Release has looked
	cancel()
	u.taking.Lock()
	defer u.taking.Unlock()
	if _, here := r.seated(name); here {
		return true
	}
	if u.epoch != 0 || u.tried {
		if err := r.cfg.Local.Release(ctx, name); err != nil {
			r.cfg.Log.Warn().Err(err).Str("user", name).
				Msg("cannot release everything of a user whom this host does not hold any more; trying again")
			return false // the epoch stays: if the user comes back, take releases the rest first
		}
		u.epoch, u.tried = 0, false
	}
	r.forget(name, u)
	return true
}

// seated returns a user's seat, and reports whether this host holds the user.
func (r *Router) seated(name string) (seat cluster.Seat, here bool) {
	seat, held := r.cfg.Cluster.Seat(name)
	return seat, held && seat.Host == r.cfg.Cluster.Host()
}

// forget removes a user of whom nothing is left here.
func (r *Router) forget(name string, u *user) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, here := r.seated(name); r.users[name] == u && u.leaving == nil && len(u.calls) == 0 &&
		!here {
		delete(r.users, name)
	}
}

// enter admits a call for a user whom this host holds. again reports whether the caller must look
// the seat up anew.
func (r *Router) enter(waiting, ctx context.Context,
	seat cluster.Seat) (_ context.Context, done func(), again bool, err error) {
	u := r.user(seat.User)
	r.mu.Lock()
	if r.stopping {
		r.mu.Unlock()
		if err = r.cfg.Local.MayStart(seat.User); err == nil { // the host has a lease again, and admits calls soon
			err = errFenced
		}
		return nil, nil, false, fencedError{err}
	}
	if r.users[seat.User] != u { // it was forgotten meanwhile
		r.mu.Unlock()
		return nil, nil, true, nil
	}
	if leaving := u.leaving; leaving != nil {
		r.mu.Unlock()
		select {
		case <-leaving:
			return nil, nil, true, nil
		case <-waiting.Done():
			if ctx.Err() != nil { // the caller has gone
				return nil, nil, false, context.Cause(ctx)
			}
			return nil, nil, false, errLeaving
		}
	}
	ctx, end := context.WithCancelCause(ctx)
	c := &call{end}
	u.calls[c] = true
	r.mu.Unlock()
	done = sync.OnceFunc(func() {
		end(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(u.calls, c)
	})
	// The seat is checked once the call is counted: from here on, Stop, follow and giveUp know of
	// the call.
	if now, held := r.cfg.Cluster.Seat(seat.User); !held || now != seat {
		done()
		return nil, nil, true, nil
	}
	if err = r.cfg.Local.MayStart(seat.User); err != nil {
		err = fencedError{err}
	} else {
		err = r.take(seat.User, u, seat.Epoch)
	}
	if errors.Is(err, errNoSeat) {
		done()
		return nil, nil, true, nil
	}
	if err == nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		done()
		return nil, nil, false, err
	}
	return ctx, done, false, nil
}

// fencedError is the error of a call that this host did not begin, because it may do nothing for
// users now.
type fencedError struct{ error }

func (e fencedError) Unwrap() error { return e.error }

var errFenced = fmt.Errorf("lease lost: this call was cancelled and was not retried; "+
	"send it again, any host answers: %w", cerrdefs.ErrUnavailable)

// errNoSeat says that this host no longer has the seat for which a user was to be taken over.
var errNoSeat = errors.New("the seat has changed meanwhile")

// errLeaving is the error of a call that has waited in vain for its user to leave this host.
var errLeaving = fmt.Errorf("the user is still leaving this host, which waits for what runs: "+
	"nothing of this call was begun; send it again: %w", cerrdefs.ErrUnavailable)

func (r *Router) endCalls(name string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u := r.users[name]; u != nil {
		for c := range u.calls {
			c.end(why)
		}
	}
}

// Stop ends the calls that this host answers, and admits none until Go. It returns when the calls
// or ctx have ended.
func (r *Router) Stop(ctx context.Context) {
	r.mu.Lock()
	r.stopping = true
	for _, u := range r.users {
		for c := range u.calls {
			c.end(errFenced)
		}
	}
	r.mu.Unlock()
	r.idle(ctx, "")
}

// Go admits calls again.
func (r *Router) Go() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopping = false
}

// Calls returns how many calls of a user are being answered here; with an empty name, of all users.
func (r *Router) Calls(name string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, u := range r.users {
		if name == "" || name == other {
			n += len(u.calls)
		}
	}
	return n
}

// idle waits until no call of a user, or with an empty name of any user, is being answered. It
// reports false if ctx ends first.
func (r *Router) idle(ctx context.Context, name string) bool {
	for r.Calls(name) > 0 {
		if !cluster.Wait(ctx, 2*time.Millisecond) {
			return false
		}
	}
	return true
}

// HandOver gives a user to another host, unless the user is busy: then nothing happens. With
// evenBusy it gives every user away once the running calls have ended; when ctx ends, it ends them.
// Calls that come meanwhile wait, and are answered by the other host.
func (r *Router) HandOver(ctx context.Context, name string, evenBusy bool) error {
	if _, here := r.seated(name); !here {
		return nil
	}
	err := r.giveUp(ctx, name, leave{evenBusy: evenBusy})
	if err == errBusy {
		return nil
	}
	return err
}

// Drop gives up a deleted user, as HandOver does with evenBusy, unless isBack says that the calls
// which have ended meanwhile have made the user anew.
func (r *Router) Drop(ctx context.Context, name string, isBack func() bool) error {
	return r.giveUp(ctx, name, leave{evenBusy: true, isBack: isBack})
}

// leave says how a user is given up.
type leave struct {
	evenBusy bool
	isBack   func() bool // of a deleted user; nil for others
}

var errBusy = errors.New("the user is busy")

// busy reports whether a user who is leaving has something to be waited for. Nothing more can begin
// meanwhile. As long as a user is not taken over, it is not known what runs.
func (r *Router) busy(name string, u *user) bool {
	if r.Calls(name) > 0 || !u.taking.TryLock() {
		return true
	}
	defer u.taking.Unlock()
	return u.epoch == 0 || r.cfg.Local.Busy(name)
}

func (r *Router) giveUp(ctx context.Context, name string, how leave) (err error) {
	u := r.user(name)
	r.mu.Lock()
	if u.leaving != nil || r.users[name] != u { // it leaves already, or was forgotten meanwhile
		r.mu.Unlock()
		return nil
	}
	leaving := make(chan struct{})
	u.leaving = leaving
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		u.leaving = nil
		r.mu.Unlock()
		if err == nil {
			r.forget(name, u)
		}
		close(leaving)
	}()
	if !how.evenBusy && r.busy(name, u) {
		return errBusy
	}
	if !r.idle(ctx, name) {
		r.endCalls(name,
			fmt.Errorf("the host is drained and gave the user to another, so the call was ended; it is not repeated: %w",
				cerrdefs.ErrUnavailable))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if !r.idle(ctx, name) {
		return fmt.Errorf("calls of user %q do not end", name)
	}
	if how.isBack != nil && how.isBack() {
		return nil
	}
	u.taking.Lock()
	defer u.taking.Unlock()
	// Nothing of the user may run here once another host may take over.
	if err := r.cfg.Local.Release(ctx, name); err != nil {
		u.epoch = partly
		return err
	}
	u.epoch, u.tried = 0, false
	return r.giveSeat(context.WithoutCancel(ctx), name, how.isBack != nil)
}

// giveSeat gives up the seat of a user of whom nothing is left here. It tries until the seat is
// gone, for etcd may yet do what it has not answered: another host may have the user at any moment,
// so no call may begin here. The seat ends with the lease at the latest. An error means that, or
// that the service ends.
func (r *Router) giveSeat(ctx context.Context, name string, isNoMore bool) error {
	for {
		err := r.cfg.Cluster.Give(ctx, name, isNoMore)
		if err == nil {
			return nil
		}
		if _, here := r.seated(name); !here {
			return nil
		}
		if r.cfg.Local.MayStart(name) != nil {
			return err
		}
		r.cfg.Log.Warn().Err(err).Str("user", name).Msg("cannot give up a seat yet; trying again")
		select {
		case <-time.After(takeAgain):
		case <-r.ended:
			return err
		}
	}
}
