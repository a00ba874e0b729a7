package persistent

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/quota"
)

// In a cluster, one host holds a sandbox. All hosts have its record, but only the holder has its
// container, changes it and keeps its deadline. When another host comes to hold it, the container
// is gone with all that was in it but the home: a new one is created when it is needed.

// Shared keeps the records of a cluster's sandboxes. Each host receives them through Apply.
type Shared interface {
	// Write replaces the record of a sandbox, or removes it where text is nil, and returns its
	// revision. It fails unless this host holds the sandbox.
	Write(id string, text []byte) (revision int64, err error)
	// Seat returns this host's name, and the epoch of a sandbox's seat; 0 if this host does not
	// hold it.
	Seat(id string) (host string, epoch int64)
	// Leased reports whether this host holds a sandbox's seat of that epoch, under the lease that
	// it has now: nobody else has ended what it ran there.
	Leased(id string, epoch int64) bool
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

// seated records the seat of a sandbox that is to be created, and what it is created from.
func (s *Sandboxes) seated(r *record, from Template) error {
	r.From = &from
	if s.cfg.Shared == nil {
		return nil
	}
	if r.Host, r.Epoch = s.cfg.Shared.Seat(r.ID); r.Epoch == 0 {
		return fmt.Errorf("this host does not hold the sandbox that it is to create: try again: %w",
			cerrdefs.ErrUnavailable)
	}
	return nil
}

// share writes a shared record.
func (e *entry) share(text []byte) error {
	revision, err := e.of.cfg.Shared.Write(e.id, text)
	if err == nil {
		e.mu.Lock()
		e.revision = max(e.revision, revision)
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
		e = &entry{of: s, id: id, give: func() {}, counted: true}
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

// Adopt takes over a sandbox that this host holds from now on. Its container is found if it was
// created under this same seat.
func (s *Sandboxes) Adopt(id string) error {
	e := s.entry(id)
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, epoch := s.cfg.Shared.Seat(id)
	if e.place != elsewhere {
		if e.place == here && e.record.Epoch != epoch { // what is known here is of an earlier seat
			return fmt.Errorf("cannot take over sandbox %q again before it was released: %w", id,
				cerrdefs.ErrUnavailable)
		}
		return nil
	}
	give := s.cfg.Quotas.Hold(e.record.account(), quota.Containers, 1)
	e.commands = map[int]*counted{}
	e.give, e.gone = give, e.record.gone()
	if e.record.Epoch != epoch || e.record.Epoch == e.released || e.record.OutOfMemory != nil {
		e.place, e.counted = homeOnly, true
		s.again.Store(true) // an earlier container may be left
	} else {
		e.place, e.counted = here, false
		s.sought.Add(1)
	}
	s.rouse()
	return nil
}

// Release ends what runs of a sandbox that this host will no longer hold. Its record stays as it
// is.
func (s *Sandboxes) Release(ctx context.Context, id string) error {
	e := s.entry(id)
	if e == nil || !e.isHeld() {
		return nil
	}
	e.changing.Lock()
	defer e.changing.Unlock()
	e.mu.Lock()
	// Even if the rest fails, and if this host takes it again under the same seat: what goes on
	// from the home has not ended.
	e.container, e.place, e.released = "", homeOnly, e.record.Epoch
	e.mu.Unlock()
	if err := s.removeContainers(ctx, id); err != nil {
		s.sought.Add(1) // one may be left
		s.rouse()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countNoMore()
	e.give()
	e.give, e.place, e.container, e.gone = func() {}, elsewhere, "", e.record.gone()
	if e.removed {
		delete(s.all, id)
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
	case s.cfg.Shared == nil:
		return e, true
	case !s.cfg.Shared.Known():
		return nil, false
	case e == nil:
		return nil, true
	}
	e.mu.Lock()
	place := e.place
	e.mu.Unlock()
	_, epoch := s.cfg.Shared.Seat(e.id)
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
	if !b.entry.hasMoved() || b.Info().State != StateRunning {
		return nil
	}
	return b.changes(func() error { return b.begin(ctx) })
}

// beginLimit is how long begin may take, with the template's start and ready commands.
const beginLimit = time.Minute

// begin creates the container of a sandbox that has moved, which then runs; entry.changing is held.
func (b *Sandbox) begin(ctx context.Context) (err error) {
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
		if err != nil {
			err = fmt.Errorf("cannot start sandbox %q again, %s: %w", b.entry.id, r.lostBy(), err)
		}
	}()
	// The caller may have gone:
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginLimit)
	defer cancel()
	if r.OutOfMemory != nil { // it may not have been recorded, and only the old container says so
		if err := e.change(func(*record) {}); err != nil {
			return err
		}
	}
	if err := s.removeContainers(ctx, b.entry.id); err != nil { // of an earlier seat on this host
		return err
	}
	owner, _ := s.cfg.Owners.Owner(r.Owner)
	asked := r.From.plan(r.Network, r.Root && s.cfg.Planner.AllowsRoot(), r.Env)
	made, err := s.plan(ctx, b.entry.id, owner, asked, false)
	if err != nil {
		return err
	}
	spec := made.Spec
	started, err := s.cfg.Executor.StartPersistent(ctx, spec, owner)
	if err != nil {
		return err
	}
	host, epoch := "", int64(0)
	if s.cfg.Shared != nil {
		host, epoch = s.cfg.Shared.Seat(b.entry.id)
	}
	if err := e.change(func(r *record) {
		r.Moved = &Moved{From: r.Host, At: time.Now().UTC()}
		if r.OutOfMemory != nil {
			r.Moved.Why, r.OutOfMemory = *r.OutOfMemory, nil
		}
		r.Host, r.Epoch, r.Reach, r.Root = host, epoch, &spec.Egress, spec.Root
		resumed(r)
	}); err != nil {
		s.again.Store(true) // for the container, if it cannot be removed
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalLimit)
		defer cancel()
		return errors.Join(err, s.cfg.Executor.RemoveProcess(ctx, started.ID))
	}
	e.mu.Lock()
	e.container, e.place, e.released, e.counted = started.ID, here, 0, true
	e.mu.Unlock()
	s.cfg.Log.Warn().Str("sandbox", b.entry.id).Str("from", r.Host).Str("to", host).
		Int64("epoch", epoch).
		Msg("a sandbox was started again from its home alone: " + r.lostBy())
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

// lostBy says how a sandbox that has moved lost its container.
func (r record) lostBy() string {
	if r.OutOfMemory != nil {
		return "its container was " + *r.OutOfMemory
	}
	return fmt.Sprintf("its host %q was lost, or gave it up", r.Host)
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

// Due returns the sandboxes that this host does not hold and for which some host has to act: their
// deadline has passed, or they are to be removed.
func (s *Sandboxes) Due() (ids []string) {
	for _, e := range s.entries() {
		if _, due := e.untilDue(time.Now()); due && !e.isHeld() {
			ids = append(ids, e.id)
		}
	}
	return ids
}

// Busy reports whether this host has something of a sandbox that another one would not have.
func (s *Sandboxes) Busy(id string) bool {
	e := s.entry(id)
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	mayBeFound := e.place == here && !s.allFound()
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
