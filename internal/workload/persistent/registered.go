package persistent

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/plan"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/registry"
)

// A registered sandbox is one machine, made from its registration, which decides: a container that
// has other things than the sandbox holds now is given up, other names are set while it runs, and
// one whose registration is gone, or is no longer persistent, is removed.

// registered is a registered sandbox that is persistent.
type registered struct {
	User string `json:"user"`
	ID   string `json:"id"`
	// Created is when it was registered: one that is deleted and registered again is another one.
	Created time.Time `json:"created"`
	// Held is what the container was made with, as a hash; empty before there is one.
	Held string `json:"held,omitempty"`
}

// Of returns the persistent sandbox that a registered one is, for a caller with a token. Its
// container is made when it is used. The error is of class Unavailable if another host holds the
// user.
func (s *Sandboxes) Of(box registry.Sandbox, token quota.Token) (*Sandbox, error) {
	id := idOf(box)
	if s.cfg.Shared != nil {
		if _, epoch := s.cfg.Shared.Seat(box.User.String()); epoch == 0 {
			return nil, fmt.Errorf("this host does not hold user %q: try again: %w", box.User,
				cerrdefs.ErrUnavailable)
		}
	}
	e := s.entryFor(id, box)
	if e.isGone() { // as it was not persistent for a moment
		gone := e
		gone.changing.Lock() // waits for its removal
		e = s.entryFor(id, box)
		gone.changing.Unlock()
		if e.isGone() {
			return nil, fmt.Errorf("the container of sandbox %q is still being removed: try again: %w",
				box.ID, cerrdefs.ErrUnavailable)
		}
	}
	e.keepHome()
	return &Sandbox{entry: e, owner: token}, nil
}

// entryFor returns the entry of a registered sandbox, which it makes if there is none.
func (s *Sandboxes) entryFor(id string, box registry.Sandbox) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[id]
	if e == nil {
		e = &entry{of: s, id: id, place: homeOnly, commands: map[int]*counted{}, counted: true,
			removed: s.cfg.Shared != nil, record: record{
				Version: registeredVersion, ID: id, Owner: box.Token, AutoResume: true, Made: true,
				From: &Template{}, Of: &registered{User: box.User.String(), ID: box.ID.String(),
					Created: box.CreatedAt},
			}}
		s.all[id] = e
	}
	return e
}

// Warm reports whether the sandbox has a container that the next command can use.
func (b *Sandbox) Warm() bool {
	b.entry.mu.Lock()
	defer b.entry.mu.Unlock()
	_, differs := b.entry.strays()
	return b.entry.place == here && b.entry.container != "" && !differs &&
		b.entry.state() != StateEnded
}

// Runs reports whether a registered sandbox has a container.
func (s *Sandboxes) Runs(box registry.Sandbox) bool {
	e := s.entry(idOf(box))
	return e != nil && (&Sandbox{entry: e}).Warm()
}

// idOf returns the id of a registered sandbox's container, which no other sandbox has.
func idOf(box registry.Sandbox) string {
	const length = 19
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%d", box.User, box.ID,
		box.CreatedAt.UnixNano()))
	return "r" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:length])
}

// networkOf returns what a registered sandbox may reach.
func networkOf(box registry.Sandbox) Network {
	return Network{None: !box.Network, Allow: box.Domains, Presets: box.Presets}
}

// registration returns the present registration of a sandbox; false if it is no longer there, or no
// longer persistent.
func (s *Sandboxes) registration(of registered) (registry.Sandbox, bool) {
	box, err := s.cfg.Planner.Sandboxes().Find(of.ID)
	return box, err == nil && box.Persistent && box.User.String() == of.User &&
		box.CreatedAt.Equal(of.Created)
}

// Registered says that a user's registrations have changed, or with an empty name that the settings
// have. It does not wait for what follows.
func (s *Sandboxes) Registered(user string) {
	if s == nil {
		return
	}
	for _, e := range s.entries() {
		e.mu.Lock()
		if of := e.record.Of; of != nil && (user == "" || of.User == user) {
			e.check = true
		}
		e.mu.Unlock()
	}
	s.rouse()
}

// strays reports whether a registered sandbox has no registration any more, or may differ from it.
// It is called with entry.mu held.
func (e *entry) strays() (orphan, differs bool) {
	of := e.record.Of
	if of == nil || !e.check || e.of.cfg.Shared != nil && !e.of.cfg.Shared.Known() {
		return false, false
	}
	_, is := e.of.registration(*of)
	return !is, is && e.place == here
}

// conforms makes a registered sandbox what its registration says.
func (b *Sandbox) conforms(ctx context.Context) error {
	e := b.entry
	if e.hasMoved() { // it begins with what is registered then
		return nil
	}
	r := e.recorded()
	box, is := e.of.registration(*r.Of)
	if is {
		held, reach, err := e.of.heldNow(box)
		if err == nil && held == r.Of.Held && same(reach, r.Reach) && !(box.Paused && !r.Paused) {
			return nil
		}
	}
	return b.changes(func() error { return b.conform(ctx) })
}

// heldNow returns what a sandbox holds that its container is made with, as a hash, and what it may
// reach. Other sandboxes of the user and the settings decide, too.
func (s *Sandboxes) heldNow(box registry.Sandbox) (held string, reach dockerexec.Egress,
	err error) {
	if held, err = s.cfg.Planner.Held(box); err == nil {
		reach, err = s.cfg.Planner.PersistentEgress(box, networkOf(box).persistent())
	}
	return held, reach, err
}

// same compares what a sandbox may reach with what is recorded, of which nil is not known.
func same(a dockerexec.Egress, b *dockerexec.Egress) bool {
	return b != nil && a.Profile == b.Profile && slices.Equal(a.Domains, b.Domains) &&
		slices.Equal(a.Denied, b.Denied)
}

var errNotRegistered = fmt.Errorf("the sandbox is not registered as persistent any more: %w",
	cerrdefs.ErrNotFound)

// conform is conforms with entry.changing held.
func (b *Sandbox) conform(ctx context.Context) error {
	e := b.entry
	e.mu.Lock()
	r, container, place := e.record, e.container, e.place
	e.check = false // unless that is said again from here on
	e.mu.Unlock()
	box, is := e.of.registration(*r.Of)
	if !is {
		return errNotRegistered
	}
	held, reach, err := e.of.heldNow(box)
	switch {
	case place != here:
	case err != nil: // what it has is refused now, and the next call says why
		err = e.loses(container, "given up, as its registration is refused now")
	case held != r.Of.Held:
		err = e.loses(container, "given up, as the sandbox holds other things now")
	case !same(reach, r.Reach):
		err = b.setNetwork(ctx, networkOf(box))
		if cerrdefs.IsFailedPrecondition(err) {
			err = e.loses(container, "given up, as the sandbox has another network now")
		}
	}
	if err == nil && place == here && box.Paused && !e.recorded().Paused && !e.hasMoved() {
		err = b.pause(ctx, e.change)
	}
	if err != nil {
		e.mu.Lock()
		e.check = true
		e.mu.Unlock()
	}
	return err
}

// planHeld plans the container of a registered sandbox, and returns what to record of that.
func (s *Sandboxes) planHeld(ctx context.Context, r record) (made plan.Plan,
	note func(*record), err error) {
	box, is := s.registration(*r.Of)
	if !is {
		return made, nil, errNotRegistered
	}
	of := *r.Of
	if of.Held, err = s.cfg.Planner.Held(box); err != nil {
		return made, nil, err
	}
	made, err = s.cfg.Planner.PlanHeld(ctx, box, r.ID, false)
	limits := made.Spec.Platform.Limits
	return made, func(r *record) {
		r.Of, r.Network, r.Env = &of, networkOf(box), made.PersistentEnvironment()
		r.CPUs, r.Memory = float64(limits.NanoCPUs)/1e9, limits.Memory
	}, err
}

// FollowPause pauses the container of a registered sandbox that is paused, and resumes it
// otherwise, if it has one.
func (s *Sandboxes) FollowPause(ctx context.Context, box registry.Sandbox) error {
	if s == nil {
		return nil
	}
	e := s.entry(idOf(box))
	if e == nil || e.hasMoved() || !e.isHeld() {
		return nil
	}
	b := &Sandbox{entry: e}
	if box.Paused {
		return b.conforms(ctx)
	}
	return b.Resume(ctx)
}

// enter counts a call that uses the sandbox, until leave is called.
func (e *entry) enter() (leave func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.calls--
		e.used = time.Now()
	}
}

// EndUser removes the containers of a user's registered sandboxes, with all that runs there.
func (s *Sandboxes) EndUser(user string) error {
	if s == nil {
		return nil
	}
	for _, e := range s.of(user) {
		if e.recorded().Of == nil || !e.isHeld() {
			continue
		}
		if err := e.endNow(); err != nil {
			return err
		}
	}
	return nil
}

// endNow removes a sandbox, unless that is done already.
func (e *entry) endNow() error {
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.of.entry(e.id) != e {
		return nil
	}
	return e.remove()
}

// SetFreezeAfter says how long after its last call a registered sandbox is paused in which nothing
// runs; 0 means never.
func (s *Sandboxes) SetFreezeAfter(d time.Duration) { s.freezeAfter.Store(int64(d)) }

// mayFreeze reports whether a registered sandbox may be idle. It is called with entry.mu held.
func (e *entry) mayFreeze(now time.Time) bool {
	after := time.Duration(e.of.freezeAfter.Load())
	return e.record.Of != nil && after > 0 && e.place == here && e.container != "" && !e.gone &&
		e.calls == 0 && e.counted && len(e.commands) == 0 && now.Sub(e.used) >= after &&
		e.state() == StateRunning
}

// freeze pauses a registered sandbox in which nothing runs; the next call resumes it.
func (e *entry) freeze() {
	b := &Sandbox{entry: e, asleep: true}
	ctx, cancel := context.WithTimeout(e.of.life, recountLimit)
	defer cancel()
	got, err := b.ask(ctx, control.Request{Do: control.Idle}, nil)
	if err != nil { // it ends, or is used just now
		return
	}
	_ = got.stream.Close()
	if !got.answer.Idle || !e.changing.TryLock() {
		return
	}
	defer e.changing.Unlock()
	e.mu.Lock()
	still := e.mayFreeze(time.Now()) && e.container == got.container
	e.mu.Unlock()
	if !still {
		return
	}
	err = b.pause(ctx, e.change)
	e.mu.Lock()
	used := e.calls > 0
	e.mu.Unlock()
	if err == nil && used { // by a call that has found it running
		ctx, cancel := context.WithTimeout(e.of.life, removalLimit)
		defer cancel()
		err = b.resume(ctx)
	}
	if err != nil && e.of.life.Err() == nil {
		e.of.cfg.Log.Warn().Err(err).Str("sandbox", e.recorded().box()).
			Msg("cannot freeze an idle sandbox yet; trying again")
	}
}
