package persistent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
)

// In a cluster, one host holds a user, and with the user the sandbox. All hosts have its record, but only the holder has its
// container, changes it and keeps its deadline. When another host comes to hold it, the container
// is gone with all that was in it but the home: a new one is created when it is needed.

// Shared keeps the records of a cluster's sandboxes. Each host receives them through Apply.
type Shared interface {
	// Write replaces the record of a user's sandbox, or removes it where text is nil, and returns
	// its revision. It fails unless this host holds the user.
	Write(user, id string, text []byte) (revision int64, err error)
	// Seat returns this host's name, and the epoch of a user's seat; 0 if this host does not hold
	// it.
	Seat(user string) (host string, epoch int64)
	// Leased reports whether this host holds a user's seat of that epoch, under the lease that it
	// has now: nobody else has ended what it ran there.
	Leased(user string, epoch int64) bool
	// Known reports whether all existing records and seats are known.
	Known() bool
}

// Moved says that a sandbox was started again from its home alone.
type Moved struct {
	// From is the host that had it, and was lost or gave it up, unless Why says what else happened.
	From string    `json:"from"`
	Why  string    `json:"why,omitempty"`
	At   time.Time `json:"at"`
}

// why says why the sandbox was started again.
func (m Moved) why() string {
	if m.Why != "" {
		return "its container was " + m.Why
	}
	return fmt.Sprintf("its host %q was lost, or gave it up", m.From)
}

// seated records the seat of a sandbox that is to be created, and what it is created from.
func (s *Sandboxes) seated(r *record, from Template) error {
	r.From = &from
	if s.cfg.Shared == nil {
		return nil
	}
	if r.Host, r.Epoch = s.cfg.Shared.Seat(r.user()); r.Epoch == 0 {
		return fmt.Errorf("this host does not hold the sandbox that it is to create: try again: %w",
			cerrdefs.ErrUnavailable)
	}
	return nil
}

// share writes a shared record.
func (e *entry) share(user string, text []byte) error {
	revision, err := e.of.cfg.Shared.Write(user, e.id, text)
	if err == nil {
		e.mu.Lock()
		e.revision, e.removed = max(e.revision, revision), false
		e.mu.Unlock()
	}
	return err
}

// Apply updates a sandbox from its shared record and that record's revision; nil means that it was
// removed. What this host has written since wins.
func (s *Sandboxes) Apply(id string, text []byte, revision int64) {
	var r record
	if text != nil {
		var err error
		if r, err = parse(id, text); err != nil {
			s.cfg.Log.Error().Err(err).Str("sandbox", id).
				Msg("damaged record of a persistent sandbox")
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[id]
	if e == nil && text != nil {
		e = &entry{of: s, id: id, counted: true}
		s.all[id] = e
	}
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case text == nil && e.place == elsewhere:
		delete(s.all, id)
	case text == nil:
		e.removed = true // Release forgets it
	case revision > e.revision:
		// Pause may have had no answer, and have given up:
		if e.place != elsewhere && r.Paused && !e.record.Paused {
			s.again.Store(true)
			s.rouse()
		}
		e.record, e.revision, e.removed = r, revision, false
		if e.place == elsewhere {
			e.gone = r.gone()
		}
	}
}

// of returns the sandboxes of a user. A client's sandbox is a user.
func (s *Sandboxes) of(user string) []*entry {
	return slices.DeleteFunc(s.entries(), func(e *entry) bool {
		return e.recorded().user() != user
	})
}

// Adopt takes over the sandboxes of a user whom this host holds from now on. A container is found
// if it was created under this same seat.
func (s *Sandboxes) Adopt(user string) error {
	_, epoch := s.cfg.Shared.Seat(user)
	for _, e := range s.of(user) {
		if err := e.adopt(epoch); err != nil {
			return err
		}
	}
	return nil
}

func (e *entry) adopt(epoch int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.place != elsewhere {
		if e.place == here && e.record.Epoch != epoch { // what is known here is of an earlier seat
			return fmt.Errorf("cannot take over sandbox %q again before it was released: %w", e.id,
				cerrdefs.ErrUnavailable)
		}
		return nil
	}
	e.commands, e.gone, e.check = map[int]*counted{}, e.record.gone(), true
	if e.record.Epoch != epoch || e.record.Epoch == e.released || e.record.Lost != nil {
		e.place, e.counted = homeOnly, true
		e.of.again.Store(true) // an earlier container may be left
	} else {
		e.place, e.counted = here, false
		e.of.sought.Add(1)
	}
	e.hold()
	e.of.rouse()
	return nil
}

// hold takes the place of a sandbox that had one before, even if there is none. A registered one
// has one while it has a container.
func (e *entry) hold() {
	if e.record.Of == nil || e.place == here {
		e.give = e.of.cfg.Quotas.Hold(e.record.account(), quota.Containers, 1)
	}
}

// Release ends what runs of a user's sandboxes, whom this host will no longer hold. Their records
// stay as they are.
func (s *Sandboxes) Release(ctx context.Context, user string) (err error) {
	for _, e := range s.of(user) {
		if e.isHeld() {
			err = errors.Join(err, e.release(ctx))
		}
	}
	return err
}

func (e *entry) release(ctx context.Context) error {
	s := e.of
	e.changing.Lock()
	defer e.changing.Unlock()
	e.mu.Lock()
	// Even if the rest fails, and if this host takes it again under the same seat: what goes on
	// from the home has not ended.
	e.container, e.place, e.released = "", homeOnly, e.record.Epoch
	e.mu.Unlock()
	if err := s.removeContainers(ctx, e.id); err != nil {
		s.sought.Add(1) // one may be left
		s.rouse()
		return err
	}
	e.giveBack()
	s.mu.Lock()
	defer s.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countNoMore()
	e.place, e.container, e.gone = elsewhere, "", e.record.gone()
	if e.removed {
		delete(s.all, e.id)
	}
	return nil
}

// removeContainers removes the containers that this host has of a sandbox.
func (s *Sandboxes) removeContainers(ctx context.Context, id string) error {
	all, err := s.cfg.Executor.Persistent(ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.Spec.Persistent != id {
			continue
		}
		if err := s.cfg.Executor.RemoveProcess(ctx, c.ID); err != nil {
			return err
		}
	}
	return nil
}

func (e *entry) isHeld() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.place != elsewhere
}

func (e *entry) hasMoved() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.place == homeOnly
}

// whose returns a container's sandbox; nil is none: the container is to be removed. known is false
// while that is unclear.
func (s *Sandboxes) whose(c dockerexec.ProcessContainer) (_ *entry, known bool) {
	e := s.entry(c.Spec.Persistent)
	switch {
	case s.cfg.Shared != nil && !s.cfg.Shared.Known():
		return nil, false
	case e == nil:
		return nil, true
	}
	e.mu.Lock()
	place, r := e.place, e.record
	e.mu.Unlock()
	var epoch int64
	switch {
	case s.cfg.Shared != nil:
		_, epoch = s.cfg.Shared.Seat(r.user())
	case r.Of == nil: // what has moved keeps its container until that is recorded
		return e, true
	}
	switch {
	case place == here:
		return e, true
	case place == elsewhere && epoch != 0: // it is about to be adopted
		return nil, false
	case place == homeOnly && !e.changing.TryLock(): // it may be the one that is being created
		return nil, false
	case place == homeOnly:
		moved := e.hasMoved() // now that nobody is creating it
		e.changing.Unlock()
		if !moved {
			return e, true
		}
	}
	return nil, true
}

// settle creates the container of a sandbox that ought to run, if it has moved.
func (b *Sandbox) settle(ctx context.Context) error {
	if b.asleep || !b.entry.hasMoved() || b.Info().State != StateRunning {
		return nil
	}
	return b.changes(func() error { return b.startAgain(ctx) })
}

// beginLimit is how long begin may take, with the template's start and ready commands.
const beginLimit = time.Minute

// startAgain creates the container of a sandbox that has moved, which then runs; entry.changing is held.
func (b *Sandbox) startAgain(ctx context.Context) (err error) {
	s, e := b.entry.of, b.entry
	e.mu.Lock()
	r, place := e.record, e.place
	e.mu.Unlock()
	if place != homeOnly {
		return nil // another call has created it
	}
	if ctx.Err() != nil { // its caller has gone, and others may wait for changing
		return context.Cause(ctx)
	}
	defer func() {
		if err != nil && r.Of != nil && e.hasMoved() {
			e.giveBack()
		}
		if err != nil {
			err = fmt.Errorf("cannot start sandbox %q%s: %w", r.box(), r.again(", "), err)
		}
	}()
	// The caller may have gone:
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginLimit)
	defer cancel()
	if r.Lost != nil { // it may not have been recorded, and only the old container says so
		if err := e.change(func(*record) {}); err != nil {
			return err
		}
	}
	if err := s.removeContainers(ctx, b.entry.id); err != nil { // of an earlier seat on this host
		return err
	}
	owner, _ := s.cfg.Owners.Owner(r.Owner)
	made, note, err := s.planAgain(ctx, r, owner)
	if err != nil {
		return err
	}
	if err := e.takePlace(ctx, quota.Account{User: r.user(), Token: owner}); err != nil {
		return err
	}
	spec := made.Spec
	started, err := s.cfg.Executor.StartPersistent(ctx, spec, owner)
	if err != nil {
		return err
	}
	host, epoch := "", int64(0)
	if s.cfg.Shared != nil {
		host, epoch = s.cfg.Shared.Seat(r.user())
	}
	if err := e.change(func(r *record) {
		now := time.Now().UTC()
		if !r.wasStarted() {
			r.Started = now
		} else if r.Moved = (&Moved{From: r.Host, At: now}); r.Lost != nil {
			r.Moved.Why = *r.Lost
		}
		r.Lost = nil
		r.Removing = false // as of an earlier one with the same registration
		r.Host, r.Epoch, r.Reach, r.Root = host, epoch, &spec.Egress, spec.Root
		note(r)
		resumed(r)
	}); err != nil {
		s.again.Store(true) // for the container, if it cannot be removed
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalLimit)
		defer cancel()
		return errors.Join(err, s.cfg.Executor.RemoveProcess(ctx, started.ID))
	}
	e.mu.Lock()
	e.container, e.place, e.released, e.counted, e.used = started.ID, here, 0, true, time.Now()
	e.mu.Unlock()
	if r.wasStarted() {
		s.cfg.Log.Warn().Str("sandbox", r.box()).Str("from", r.Host).Str("to", host).
			Int64("epoch", epoch).
			Msg("a sandbox was started again from its home alone" + r.again(": "))
	}
	if !r.From.waits() {
		return nil
	}
	during := *b
	during.asleep = true
	err = during.makeReady(ctx, *r.From)
	if _, is := errors.AsType[dockerexec.Exhausted](err); is { // so it does not run
		return err
	}
	if err != nil {
		s.cfg.Log.Warn().Err(err).Str("sandbox", b.entry.id).
			Msg("a sandbox that was started again is not ready")
	}
	return nil
}

// planAgain plans the container of a sandbox that has none, and returns what to record of it.
func (s *Sandboxes) planAgain(ctx context.Context, r record, owner quota.Token) (plan.Plan,
	func(*record), error) {
	if r.Of != nil {
		return s.planHeld(ctx, r)
	}
	asked := r.From.plan(r.Network, r.Root && s.cfg.Planner.AllowsRoot(), r.Env)
	made, err := s.plan(ctx, r.ID, owner, asked, false)
	return made, func(*record) {}, err
}

// takePlace takes a place in the quotas, unless the sandbox has one.
func (e *entry) takePlace(ctx context.Context, a quota.Account) error {
	e.mu.Lock()
	has := e.give != nil
	e.mu.Unlock()
	if has {
		return nil
	}
	give, err := e.of.cfg.Places.TakePlace(ctx, a)
	if err == nil {
		e.mu.Lock()
		e.give = give
		e.mu.Unlock()
	}
	return err
}

// wasStarted reports whether the sandbox has had a container before.
func (r record) wasStarted() bool { return !r.Started.IsZero() }

// again says why a sandbox is started again, behind words that lead to it; empty for a first start.
func (r record) again(lead string) string {
	if !r.wasStarted() {
		return ""
	}
	from := Moved{From: r.Host}
	if r.Lost != nil {
		from.Why = *r.Lost
	}
	return lead + from.why()
}

// removing records that a sandbox is to be removed. Without a cluster, it is removed even if that
// cannot be written.
func (e *entry) removing() error {
	mark := func(r *record) { r.Removing = true }
	if e.of.cfg.Shared != nil {
		return e.change(mark)
	}
	e.must(mark)
	return nil
}

// Due returns the users whom this host does not hold and for whom some host has to act: the deadline
// of a sandbox of theirs has passed, or one is to be removed.
func (s *Sandboxes) Due() (users []string) {
	for _, e := range s.entries() {
		if _, due := e.untilDue(time.Now()); due && !e.isHeld() {
			users = append(users, e.recorded().user())
		}
	}
	return users
}

// Busy reports whether this host has something of a user's sandboxes that another one would not
// have.
func (s *Sandboxes) Busy(user string) bool {
	return slices.ContainsFunc(s.of(user), (*entry).busy)
}

func (e *entry) busy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	mayBeFound := e.place == here && !e.of.allFound()
	return !e.gone && (e.container != "" || mayBeFound)
}

// Abandon says that the seat of an id is no longer needed, unless there is a sandbox of that id.
func (s *Sandboxes) Abandon(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Shared != nil && s.all[id] == nil {
		s.leaving[id] = true
	}
}

// Leave has start run a function for each id whose seat is no longer needed, unless one is running:
// it calls give for that id. Where that fails, the next Leave tries again.
func (s *Sandboxes) Leave(start func(func() error), give func(id string) error) {
	s.mu.Lock()
	var ids []string
	for id := range s.leaving {
		if !s.giving[id] {
			s.giving[id] = true
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	for _, id := range ids {
		start(func() error {
			var err error
			// Otherwise a user who was removed has come back:
			if !s.cfg.Planner.Sandboxes().HasUser(id) {
				err = give(id)
			}
			if err != nil {
				s.cfg.Log.Warn().Err(err).Str("sandbox", id).
					Msg("cannot give up the seat of a sandbox that is gone; trying again")
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if delete(s.giving, id); err == nil {
				delete(s.leaving, id)
			}
			return err
		})
	}
}
