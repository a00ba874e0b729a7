package persistent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/quota"
)

// hosts are services of a cluster over one folder, each with an engine of its own.
type hosts struct {
	*lab

	mu       sync.Mutex
	revision int64
	seats    map[string]string
	epochs   map[string]int64
	records  map[string][]byte
	all      []*host
	silent   bool
	unheard  bool // what is written is written, and the answer is lost
}

type host struct {
	*hosts
	name   string
	engine *fakeEngine
	s      *Sandboxes
}

func newHosts(t *testing.T) *hosts {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	l.root = true
	l.open()
	return &hosts{lab: l, seats: map[string]string{}, epochs: map[string]int64{}, records: map[string][]byte{}}
}

// start is what a host does that starts, with the containers that its engine has.
func (c *hosts) start(name string, engine *fakeEngine) *host {
	c.t.Helper()
	h := c.open(name, engine)
	h.s.Start(context.Background())
	c.t.Cleanup(h.s.Shutdown)
	return h
}

// open opens a host that has not looked for its containers.
func (c *hosts) open(name string, engine *fakeEngine) *host {
	c.t.Helper()
	h := &host{hosts: c, name: name, engine: engine}
	var err error
	cfg := c.config()
	cfg.Shared, cfg.Executor = h, engine
	if h.s, err = Open(cfg); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	for id, text := range c.records {
		h.s.Apply(id, text, c.revision)
	}
	c.all = append(c.all, h)
	c.mu.Unlock()
	return h
}

func (h *host) Write(user, id string, text []byte) (int64, error) {
	h.hosts.mu.Lock()
	defer h.hosts.mu.Unlock()
	if h.silent || h.seats[user] != h.name {
		return 0, errors.New("not held")
	}
	h.revision++
	if h.hosts.records[id] = text; text == nil {
		delete(h.hosts.records, id)
	}
	for _, other := range h.all {
		other.s.Apply(id, text, h.revision)
	}
	if h.unheard {
		return 0, errors.New("no answer")
	}
	return h.revision, nil
}

func (h *host) Seat(id string) (string, int64) {
	h.hosts.mu.Lock()
	defer h.hosts.mu.Unlock()
	if h.seats[id] != h.name {
		return h.name, 0
	}
	return h.name, h.epochs[id]
}

func (h *host) Leased(id string, epoch int64) bool {
	_, now := h.Seat(id)
	return now == epoch && now != 0
}

func (h *host) Known() bool { return true }

// hold gives a host the seat of an id.
func (h *host) hold(id string) {
	h.t.Helper()
	h.hosts.mu.Lock()
	before := h.seats[id]
	h.epochs[id]++
	h.seats[id] = h.name
	h.hosts.mu.Unlock()
	for _, other := range h.all {
		if other.name != before {
			continue
		}
		if err := other.s.Release(h.t.Context(), id); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := h.s.Adopt(id); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) create(c Create) *Sandbox {
	h.t.Helper()
	c.ID = NewID()
	h.hold(c.ID)
	b, err := h.s.Create(h.t.Context(), alice, c)
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

func (h *host) find(id string) *Sandbox {
	h.t.Helper()
	b, err := h.s.Find(alice, id)
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

// Another host takes a sandbox over with its home alone, when it is called, and says so; all hosts know of it.
func TestASandboxMoves(t *testing.T) {
	c := newHosts(t)
	one, two := c.start("one", newLab(t).fakeEngine), c.start("two", newLab(t).fakeEngine)
	id := one.create(Create{Metadata: map[string]string{"a": "b"}, Env: map[string]string{"OF": "all"}}).ID()
	if i := two.find(id).Info(); i.State != StateRunning || i.Metadata["a"] != "b" || i.Moved != nil {
		t.Errorf("%+v", i)
	}
	if _, err := two.s.Find(bob, id); err == nil {
		t.Error("another finds it")
	}
	two.hold(id)
	if one.engine.PersistentRuns("c-"+id) || two.engine.PersistentRuns("c-"+id) || two.s.Busy(id) {
		t.Error("it has a container before it is called")
	}
	if err := two.find(id).Touch(t.Context()); err != nil || !two.engine.PersistentRuns("c-"+id) || !two.s.Busy(id) {
		t.Fatalf("it has no container: %v", err)
	}
	for _, h := range c.all {
		if i := h.find(id).Info(); i.State != StateRunning || i.Moved == nil || i.Moved.From != "one" {
			t.Errorf("%s: %+v", h.name, i)
		}
	}
	// One that is paused stays so until it is to go on.
	if err := two.find(id).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.hold(id)
	if err := one.find(id).Touch(t.Context()); err == nil || one.engine.PersistentRuns("c-"+id) {
		t.Errorf("a call has resumed it: %v", err)
	}
	if err := one.find(id).Connect(t.Context(), time.Now().Add(time.Hour)); err != nil || !one.engine.PersistentRuns("c-"+id) || one.find(id).Info().Moved.From != "two" {
		t.Errorf("%v, %+v", err, one.find(id).Info())
	}
	if err := one.find(id).Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, h := range c.all {
		if list := h.s.All(); len(list) != 0 {
			t.Errorf("%s: %+v", h.name, list)
		}
	}
	var left []string
	one.s.Leave(func(do func() error) { _ = do() }, func(id string) error { left = append(left, id); return nil })
	if len(left) != 1 || left[0] != id {
		t.Errorf("seats that nobody needs: %q", left)
	}
}

// A seat is given up once at a time, and another one does not wait for it.
func TestASeatIsGivenUpOnceAtATime(t *testing.T) {
	one := newHosts(t).start("one", newLab(t).fakeEngine)
	var started []func() error
	begin := func(do func() error) { started = append(started, do) }
	var given []string
	wrong := errors.New("not yet")
	give := func(id string) error { given = append(given, id); return wrong }
	for _, id := range []string{"a", "b"} {
		one.s.Abandon(id)
		one.s.Abandon("a") // which is being given up by then
		one.s.Leave(begin, give)
	}
	for _, fails := range []bool{true, false} {
		if len(started) != 2 {
			t.Fatalf("%d begun", len(started))
		}
		if !fails {
			wrong = nil
		}
		for _, do := range started {
			if err := do(); (err != nil) != fails {
				t.Error(err)
			}
		}
		started = nil
		one.s.Leave(begin, give)
	}
	if slices.Sort(given); !slices.Equal(given, []string{"a", "a", "b", "b"}) || len(started) != 0 {
		t.Errorf("given up: %q, and %d more", given, len(started))
	}
}

// The seat of a user who was removed and has come back since is kept.
func TestAUserWhoHasComeBackKeepsTheSeat(t *testing.T) {
	one := newHosts(t).start("one", newLab(t).fakeEngine)
	one.s.Abandon("back")
	if err := one.s.register(record{ID: "back"}, alice); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		one.s.Leave(func(do func() error) {
			if err := do(); err != nil {
				t.Error(err)
			}
		}, func(id string) error {
			t.Errorf("the seat of %s is given up", id)
			return nil
		})
	}
}

// A service that is started again on a host that has kept its seats finds its containers; of others it removes what is there.
func TestAHostsServiceIsStartedAgain(t *testing.T) {
	c := newHosts(t)
	one := c.start("one", newLab(t).fakeEngine)
	kept, lost := one.create(Create{}).ID(), one.create(Create{}).ID()
	one.s.Shutdown()
	c.mu.Lock()
	c.seats[lost], c.all = "two", nil
	c.mu.Unlock()
	again := c.start("one", one.engine)
	if err := again.s.Adopt(kept); err != nil {
		t.Fatal(err)
	}
	if err := again.find(kept).Pause(t.Context()); err != nil { // while it is being changed, too
		t.Errorf("its container is not found: %v", err)
	}
	if i := again.find(kept).Info(); i.Moved != nil {
		t.Errorf("%+v", i)
	}
	eventually(t, "another host's is gone", func() bool { return !one.engine.PersistentRuns("c-" + lost) })
}

// A sandbox that is taken over while the containers are looked for runs: the look has passed its container.
func TestAdoptedDuringALook(t *testing.T) {
	c := newHosts(t)
	one := c.start("one", newLab(t).fakeEngine)
	kept, stray := one.create(Create{}).ID(), one.create(Create{}).ID()
	if kept > stray { // the look comes to it first
		kept, stray = stray, kept
	}
	one.s.Shutdown()
	c.mu.Lock()
	c.seats[stray], c.all = "two", nil
	c.mu.Unlock()
	again := c.open("one", one.engine)
	one.engine.beforeRemoved = func(string) { // of the stray
		if err := again.s.Adopt(kept); err != nil {
			t.Error(err)
		}
	}
	state := func() State { return again.find(kept).Info().State }
	if err := again.s.find(t.Context()); err != nil || state() != StateRunning {
		t.Errorf("it is %v, %v", state(), err)
	}
	if err := again.s.find(t.Context()); err != nil || !again.s.Busy(kept) || !again.s.allFound() {
		t.Errorf("its container is not found: %v", err)
	}
}

// What a host knows of a sandbox that it has had under an earlier seat is not taken for what is.
func TestASandboxIsReleasedBeforeItIsAdoptedAgain(t *testing.T) {
	c := newHosts(t)
	one, two := c.start("one", newLab(t).fakeEngine), c.start("two", newLab(t).fakeEngine)
	id := one.create(Create{}).ID()
	if err := one.s.Adopt(id); err != nil {
		t.Errorf("under the same seat: %v", err)
	}
	c.mu.Lock()
	c.seats[id] = "two"
	c.epochs[id]++
	c.mu.Unlock()
	if err := two.s.Adopt(id); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.seats[id] = "one"
	c.epochs[id]++
	c.mu.Unlock()
	if err := one.s.Adopt(id); !cerrdefs.IsUnavailable(err) {
		t.Errorf("adopted beside what is left: %v", err)
	}
	if err := errors.Join(one.s.Release(t.Context(), id), one.s.Adopt(id)); err != nil {
		t.Error(err)
	}
}

// The time of a sandbox that no host holds comes: some host has to hold it, and ends it. What is not recorded ends nothing.
func TestTheTimeOfALostSandbox(t *testing.T) { synctest.Test(t, theTimeOfALostSandbox) }

func theTimeOfALostSandbox(t *testing.T) {
	c := newHosts(t)
	one, two := c.start("one", newLab(t).fakeEngine), c.start("two", newLab(t).fakeEngine)
	id := one.create(Create{Deadline: time.Now().Add(time.Second)}).ID()
	paused := one.create(Create{Deadline: time.Now().Add(time.Second), OnDeadline: Pause}).ID()
	c.mu.Lock()
	c.seats, c.silent = map[string]string{}, true
	c.mu.Unlock()
	for _, lost := range []string{id, paused} {
		if err := one.s.Release(t.Context(), lost); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "its time has come", func() bool { return len(two.s.Due()) == 2 })
	two.hold(id)
	home := filepath.Join(c.usersDir(), id, "home")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	exists := func() bool { _, err := os.Stat(home); return err == nil }
	endNow := func() bool { return endNow(two.s, id) }
	endNow()
	if !exists() {
		t.Error("its home has gone, and no other host knows")
	}
	c.mu.Lock()
	c.silent = false
	c.mu.Unlock()
	two.hold(paused)
	eventually(t, "it is paused", func() bool { return two.find(paused).Info().State == StatePaused })
	ended := endNow()
	if !ended || exists() || len(two.s.All()) != 1 {
		t.Errorf("it has not ended: %t, %+v", ended, two.s.All())
	}
}

// What a host has ended for the next one, or for its own next lease, goes on there from its home: it is not lost.
func TestSandboxEndedForAnotherHostIsNotLost(t *testing.T) {
	c := newHosts(t)
	one := c.start("one", newLab(t).fakeEngine)
	fenced, left := one.create(Create{}).ID(), one.create(Create{}).ID()
	seat := func(epoch int64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.epochs[fenced] += epoch
	}
	seat(1)
	one.engine.lose("c-" + fenced)
	if endNow(one.s, fenced) || len(one.s.All()) != 2 {
		t.Errorf("one that a fence has ended: %+v", one.s.All())
	}
	seat(-1)
	if !endNow(one.s, fenced) || len(one.s.All()) != 1 {
		t.Errorf("one that has ended by itself: %+v", one.s.All())
	}
	one.engine.mu.Lock()
	one.engine.refuses = map[string]error{"c-" + left: errors.New("not all of it")}
	one.engine.mu.Unlock()
	if err := one.s.Release(t.Context(), left); err == nil {
		t.Error("released")
	}
	one.engine.lose("c-" + left)
	goesOn := func(how string) {
		t.Helper()
		if state := one.find(left).Info().State; state != StateRunning || !endNow(one.s, left) || len(one.s.All()) != 1 {
			t.Errorf("one that was released %s is %v: %+v", how, state, one.s.All())
		}
	}
	goesOn("in part")
	if err := errors.Join(one.s.Release(t.Context(), left), one.s.Adopt(left), one.s.find(t.Context())); err != nil {
		t.Fatal(err)
	}
	goesOn("and taken again under the same seat")
}

// A sandbox whose container has not been looked for may have one, which no other host would have.
func TestSandboxIsBusyUntilReconciled(t *testing.T) {
	c := newHosts(t)
	one := c.start("one", newLab(t).fakeEngine)
	id := one.create(Create{}).ID()
	again := c.open("one", one.engine)
	if err := again.s.Adopt(id); err != nil || !again.s.Busy(id) {
		t.Errorf("not busy before the look, %v", err)
	}
	one.engine.lose("c-" + id)
	again.s.Start(t.Context())
	defer again.s.Shutdown()
	if again.s.Busy(id) {
		t.Error("busy although there is no container")
	}
}

// A pause that is recorded, and of which the answer is lost, is one: it would have no deadline.
func TestAPauseIsRecordedWithoutAnAnswer(t *testing.T) {
	c := newHosts(t)
	one := c.start("one", newLab(t).fakeEngine)
	b := one.create(Create{})
	c.mu.Lock()
	c.unheard = true
	c.mu.Unlock()
	if err := b.Pause(t.Context()); err == nil {
		t.Error("paused without an answer")
	}
	eventually(t, "its container is paused", func() bool { return one.engine.isPaused(b.ID()) })
}

// What asks a sandbox without disturbing it does not start it again, either.
func TestARecountStartsNoSandboxThatHasMoved(t *testing.T) {
	c := newHosts(t)
	one, two := c.start("one", newLab(t).fakeEngine), c.start("two", newLab(t).fakeEngine)
	id := one.create(Create{}).ID()
	two.hold(id)
	two.find(id).entry.recountOne()
	if two.engine.PersistentRuns("c-" + id) {
		t.Error("a recount has started it")
	}
}

// A container that is being made for a sandbox that goes on from its home belongs to it already.
func TestALookLeavesASandboxThatIsBeingStartedAgain(t *testing.T) {
	c := newHosts(t)
	one, two := c.start("one", newLab(t).fakeEngine), c.start("two", newLab(t).fakeEngine)
	id := one.create(Create{}).ID()
	two.hold(id)
	two.engine.afterStarted = func() {
		if err := two.s.find(t.Context()); err != nil || !two.engine.PersistentRuns("c-"+id) {
			t.Errorf("who looked for containers has removed it: %v", err)
		}
	}
	if err := two.find(id).Touch(t.Context()); err != nil {
		t.Fatal(err)
	}
	two.engine.afterStarted = nil
	if err := two.s.find(t.Context()); err != nil || !two.engine.PersistentRuns("c-"+id) {
		t.Errorf("it is gone afterwards: %v", err)
	}
}

// A container that was made too late, and cannot be recorded, is removed all the same.
func TestASandboxIsStartedAgainTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newHosts(t)
		one, two := c.start("one", newLab(t).fakeEngine), c.start("two", newLab(t).fakeEngine)
		id := one.create(Create{}).ID()
		two.hold(id)
		two.engine.afterStarted = func() {
			time.Sleep(beginLimit + time.Second)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.silent = true
		}
		if err := two.find(id).Touch(t.Context()); err == nil {
			t.Error("it runs without a record")
		}
		if two.engine.PersistentRuns("c-" + id) {
			t.Error("its container is left")
		}
	})
}
