package persistent

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/errs"
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
// container is made when it is used.
func (s *Sandboxes) Of(box registry.Sandbox, token quota.Token) *Sandbox {
	id := idOf(box)
	s.mu.Lock()
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
	s.mu.Unlock()
	e.keepHome()
	return &Sandbox{entry: e, owner: token}
}

// Warm reports whether the sandbox has a container that the next command can use.
func (b *Sandbox) Warm() bool {
	b.entry.mu.Lock()
	defer b.entry.mu.Unlock()
	return b.entry.place == here && b.entry.container != "" && b.entry.state() != StateEnded
}

// idOf returns the id of a registered sandbox's container, which no other sandbox has.
func idOf(box registry.Sandbox) string {
	const length = 19
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%d", box.User, box.ID,
		box.CreatedAt.UnixNano()))
	return "r" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:])[:length])
}

// heldBy returns what a sandbox holds that its container is made with, as a hash. The names that it
// may reach can be changed later.
func heldBy(box registry.Sandbox) string {
	var mounts []string
	for _, m := range box.Mounts {
		mounts = append(mounts, m.Source.String(), m.Target.String(), fmt.Sprint(m.ReadOnly))
	}
	dirs := func(list []string, from fmt.Stringer) []string { return append(list, from.String()) }
	var write, read []string
	for _, dir := range box.WriteDirs {
		write = dirs(write, dir)
	}
	for _, dir := range box.ReadDirs {
		read = dirs(read, dir)
	}
	text, err := json.Marshal([]any{box.WorkingDir.String(), write, read, box.Network, box.Events,
		box.AppID, mounts, box.SkillsDir})
	if err != nil {
		panic(err) // these are strings and booleans
	}
	sum := sha256.Sum256(text)
	return base32.StdEncoding.EncodeToString(sum[:])
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

// Registered says that registrations have changed. It does not wait for what follows.
func (s *Sandboxes) Registered() {
	if s != nil {
		s.rouse()
	}
}

// strays reports how a registered sandbox is not as its registration says: it has none any more, or
// its container differs. It is called with entry.mu held.
func (e *entry) strays() (orphan, differs bool) {
	of := e.record.Of
	if of == nil || e.of.cfg.Shared != nil && !e.of.cfg.Shared.Known() {
		return false, false
	}
	box, is := e.of.registration(*of)
	if !is {
		return true, false
	}
	n := e.record.Network
	return false, e.place == here && (of.Held != heldBy(box) || !slices.Equal(n.Allow, box.Domains) ||
		!slices.Equal(n.Presets, box.Presets) || box.Paused && !e.record.Paused)
}

// conforms makes a registered sandbox what its registration says.
func (b *Sandbox) conforms(ctx context.Context) error {
	b.entry.mu.Lock()
	orphan, differs := b.entry.strays()
	b.entry.mu.Unlock()
	if !orphan && !differs {
		return nil
	}
	return b.changes(func() error { return b.conform(ctx) })
}

// conform is conforms with entry.changing held.
func (b *Sandbox) conform(ctx context.Context) error {
	e := b.entry
	e.mu.Lock()
	r, container := e.record, e.container
	orphan, differs := e.strays()
	e.mu.Unlock()
	box, is := e.of.registration(*r.Of)
	switch {
	case orphan || !is:
		return errs.NotFound("sandbox %q is not registered as persistent any more", r.Of.ID)
	case !differs:
		return nil
	case r.Of.Held != heldBy(box):
		return e.loses(container, "given up, as the sandbox holds other things now")
	case box.Paused && !r.Paused:
		return b.pause(ctx, e.change)
	}
	err := b.setNetwork(ctx, networkOf(box))
	if cerrdefs.IsFailedPrecondition(err) { // another network, as settings.json says now
		return e.loses(container, "given up, as the sandbox has another network now")
	}
	return err
}

// planHeld plans the container of a registered sandbox, and returns what to record of that.
func (s *Sandboxes) planHeld(ctx context.Context, r record) (made plan.Plan,
	note func(*record), err error) {
	box, is := s.registration(*r.Of)
	if !is {
		return made, nil, errs.NotFound("sandbox %q is not registered as persistent any more",
			r.Of.ID)
	}
	made, err = s.cfg.Planner.PlanHeld(ctx, box, r.ID, false)
	of := *r.Of
	of.Held = heldBy(box)
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
		e.counted && len(e.commands) == 0 && now.Sub(e.used) >= after && e.state() == StateRunning
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
	if err := b.pause(ctx, e.change); err != nil && e.of.life.Err() == nil {
		e.of.cfg.Log.Warn().Err(err).Str("sandbox", e.recorded().box()).
			Msg("cannot freeze an idle sandbox yet; trying again")
	}
}
