package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/daycare-run/sandbox/internal/quota"
)

// sharedRecords are those of a cluster; holder is the host that may write.
type sharedRecords struct {
	mu     sync.Mutex
	holder string
	values map[string][]byte
	// after is the error of a write that is done, and of the next ones, which are not.
	after error
	lost  bool
}

// by is what a host has of them.
type by struct {
	*sharedRecords
	host string
}

func (b by) Write(user string, values map[string][]byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holder != b.host {
		return errors.New("another host holds the user")
	}
	if b.lost {
		return b.after
	}
	b.lost = b.after != nil
	for name, value := range values {
		if b.values[user+"/"+name] = value; value == nil {
			delete(b.values, user+"/"+name)
		}
	}
	return b.after
}

func (b by) Read(user, name string) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.values[user+"/"+name], nil
}

func (b by) List(user string) (map[string][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	own := map[string][]byte{}
	for name, value := range maps.All(b.values) {
		if rest, ok := strings.CutPrefix(name, user+"/"); ok {
			own[rest] = value
		}
	}
	return own, nil
}

func (b by) Holds(string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holder == b.host
}

// What runs of a user whom the host holds stays until the user's records are read, and goes when another host holds the user.
func TestContainersOfUnreadRecordsAreNoStrays(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	h := newHost(t)
	on := func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, "h1"}, h.root+"/key" }
	s := h.serve(on)
	kept := s.start(Intent{KeepAlive: true}, nil)
	s = h.serve(on) // started again
	if h.count() != 1 {
		t.Fatalf("%d containers", h.count())
	}
	if err := s.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	s.settle()
	if r := s.get(kept.ID); r.Status != Running || r.RestartCount != 0 || h.count() != 1 {
		t.Errorf("%+v, %d containers", r, h.count())
	}

	shared.holder = "h2" // while it was away
	h.serve(on)
	if h.count() != 0 {
		t.Errorf("%d containers of another host's user", h.count())
	}
}

// A host that takes a user over again, as the rest of it has failed, removes nothing of what it has begun to start.
func TestWhatIsUnreadIsDroppedOnce(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	h := newHost(t)
	s := h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, "h1"}, h.root+"/key" })
	for _, step := range []struct {
		do      func() error
		dropped int
	}{
		{func() error { return s.Adopt("alice") }, 1},
		{func() error { return s.Adopt("alice") }, 1},
		{func() error { return s.Release(t.Context(), "alice") }, 1},
		{func() error { return s.Adopt("alice") }, 2},
	} {
		if err := step.do(); err != nil || h.engine.dropped != step.dropped {
			t.Errorf("dropped %d times, not %d, %v", h.engine.dropped, step.dropped, err)
		}
	}
}

func TestAnotherHostTakesProcessesOver(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	first, second := newHost(t), newHost(t)
	second.boot = "boot-of-another"
	on := func(name string, h *host) func(*Config) {
		return func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, name}, first.root+"/key" }
	}
	h1, h2 := first.serve(on("h1", first)), second.serve(on("h2", second))
	kept := h1.start(Intent{KeepAlive: true}, map[string]string{"TOKEN": "secret"})
	once := h1.start(Intent{})
	if !h1.Busy("alice") {
		t.Error("a process that is not started again is nothing to wait for")
	}

	shared.holder = "h2" // the first is lost
	if err := h2.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	h2.settle()
	h2.pass(0) // it is started at once: that its host was lost is no failure of its own
	says(t, h2.get(once.ID), "running/exited exit -, its host was lost, or gave the user to another")
	if r := h2.get(kept.ID); r.Status != Running || r.RestartCount != 1 || r.BackoffMs != 0 {
		t.Errorf("%+v", r)
	}
	if err := h2.Adopt("alice"); err != nil || len(h2.List("alice")) != 2 {
		t.Errorf("adopted twice: %v, %d", err, len(h2.List("alice")))
	}

	// The first comes back, and has nothing of it any more.
	if err := h1.Release(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	h1.settle()
	if left := first.count(); left != 0 || len(h1.List("alice")) != 0 {
		t.Errorf("%d containers, %d processes", left, len(h1.List("alice")))
	}
	if err := h2.Remove(t.Context(), "alice", kept.ID); err != nil {
		t.Fatal(err)
	}
	for name := range shared.values {
		if strings.Contains(name, kept.ID) {
			t.Errorf("%s is left", name)
		}
	}
}

// Some host has to act for users of whom a process is to be kept alive, wherever its record was written.
func TestUsersOfProcessesToKeepAliveAreDue(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	host := newHost(t)
	s := host.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, "h1"}, host.root+"/key" })
	kept := s.start(Intent{UserID: "alice", KeepAlive: true}, map[string]string{"TOKEN": "secret"})
	s.start(Intent{UserID: "bob"}, nil)
	other := newHost(t).serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, "h2"}, host.root+"/key" })
	due := func(want ...string) {
		t.Helper()
		if got := other.Due(); !slices.Equal(got, want) {
			t.Errorf("due are %q, not %q", got, want)
		}
	}
	due()
	for name, text := range shared.values {
		other.Apply(name, text, 1)
	}
	due("alice")
	other.Apply("alice/"+kept.ID, nil, 2)
	due()
}

// A record may be written although the answer is an error. Its caller is told that there is no process, so nobody starts one.
func TestRecordWrittenDespiteAnErrorIsNotStarted(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	first, second := newHost(t), newHost(t)
	second.boot = "boot-of-another"
	on := func(name string, h *host) *service {
		return h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, name}, first.root+"/key" })
	}
	h1, h2 := on("h1", first), on("h2", second)
	shared.after = fmt.Errorf("no answer: %w", errdefs.ErrUnavailable)
	if _, _, err := h1.Start(t.Context(), Intent{UserID: "alice", Command: "x", KeepAlive: true}, quota.Token{}, nil, nil); !errdefs.IsUnavailable(err) {
		t.Fatalf("it was started: %v", err)
	}
	shared.holder, shared.after, shared.lost = "h2", nil, false
	for name, text := range shared.values {
		h2.Apply(name, text, 1)
	}
	if due := h2.Due(); len(due) > 0 {
		t.Errorf("some host has to act for %q", due)
	}
	if err := h2.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	h2.settle()
	h2.pass(time.Hour)
	list := h2.List("alice")
	if len(list) != 1 || first.done() != "" || second.done() != "" {
		t.Fatalf("%d processes, %s, %s", len(list), first.done(), second.done())
	}
	says(t, list[0], "stopped/exited exit -, the service ended while it was being started; start it again if it is still wanted")
}

// What may be recorded after an error is removed.
func TestARecordThatWasNotAnsweredIsRemoved(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	h := newHost(t)
	s := h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = unanswered{by{shared, "h1"}}, h.root+"/key" })
	if _, _, err := s.Start(t.Context(), Intent{UserID: "alice", Command: "x", KeepAlive: true}, quota.Token{}, map[string]string{"A": "b"}, nil); !errdefs.IsUnavailable(err) {
		t.Fatalf("it was started: %v", err)
	}
	if len(shared.values) != 0 || h.done() != "" {
		t.Errorf("%d values are left, there was %s", len(shared.values), h.done())
	}
}

// unanswered does what is written, and says that it has no answer.
type unanswered struct{ by }

func (u unanswered) Write(user string, values map[string][]byte) error {
	return errors.Join(u.by.Write(user, values), errdefs.ErrUnavailable)
}

// A user's processes are ended at the same time: those that do not heed the signal take their whole grace.
func TestAUsersProcessesAreReleasedAtTheSameTime(t *testing.T) {
	const processes = 5
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	h := newHost(t)
	s := h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, "h1"}, h.root+"/key" })
	if err := s.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	var bad Record
	for range processes {
		bad = s.start(Intent{})
	}
	var told atomic.Int64
	all := make(chan struct{})
	s.run.onStop = func(ctx context.Context, i Instance, _ syscall.Signal) error {
		if told.Add(1) == processes {
			close(all)
		}
		select {
		case <-all:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if i.Process == bad.ID {
			return errTest
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Release(ctx, "alice"); !errors.Is(err, errTest) {
		t.Errorf("%v", err)
	}
	if list := s.List("alice"); len(list) != 1 || list[0].ID != bad.ID || h.count() != 1 || !s.adopted["alice"] {
		t.Errorf("%d processes, %d containers, adopted %t", len(list), h.count(), s.adopted["alice"])
	}
	s.run.onStop = nil
	if err := s.Release(t.Context(), "alice"); err != nil || h.count() != 0 || s.adopted["alice"] {
		t.Errorf("%v, %d containers, adopted %t", err, h.count(), s.adopted["alice"])
	}
}

// A host that could release a user only later knows what others have done to the processes since.
func TestAProcessThatWasStoppedElsewhereStaysSo(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	first, second := newHost(t), newHost(t)
	second.boot = "boot-of-another"
	on := func(name string, h *host) *service {
		return h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, name}, first.root+"/key" })
	}
	h1, h2 := on("h1", first), on("h2", second)
	kept := h1.start(Intent{KeepAlive: true})
	h1.run.onStop = func(context.Context, Instance, syscall.Signal) error { return errTest }
	shared.holder = "h2"
	if err := h1.Release(t.Context(), "alice"); !errors.Is(err, errTest) {
		t.Errorf("%v", err)
	}
	if err := h2.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	h2.settle()
	if _, err := h2.Stop(t.Context(), "alice", kept.ID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	h1.run.onStop = nil
	if err := h1.Release(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	shared.holder = "h1"
	if err := h1.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	h1.settle()
	h1.pass(time.Hour)
	if r := h1.get(kept.ID); r.Status != Stopped || r.DesiredState != Stopped || first.count() != 0 {
		t.Errorf("%s/%s, %d containers", r.DesiredState, r.Status, first.count())
	}
}

// A host that takes processes over starts four at a time, each of another user.
func TestFourAtATimeAreTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const users, atOnce = 12, 4
		shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
		first, second := newHost(t), newHost(t)
		second.boot = "boot-of-another"
		on := func(name string, h *host) *service {
			return h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, name}, first.root+"/key" })
		}
		h1, h2 := on("h1", first), on("h2", second)
		for n := range users {
			h1.start(Intent{UserID: fmt.Sprint("u", n), KeepAlive: true})
		}
		shared.holder = "h2"
		starting, let := make(chan string, users), make(chan struct{})
		h2.run.onStart = func(r Record) error {
			starting <- r.ID
			<-let
			return nil
		}
		for n := range users {
			if err := h2.Adopt(fmt.Sprint("u", n)); err != nil {
				t.Fatal(err)
			}
		}
		h2.settle()
		second.clock.advance(0)
		for range atOnce {
			<-starting
		}
		if synctest.Wait(); len(starting) > 0 {
			t.Errorf("%d are started beside four others", len(starting))
		}
		close(let)
		h2.settle()
		if n := second.count(); n != users {
			t.Errorf("%d run", n)
		}
	})
}

// What a cluster cannot keep is refused before anything is written or started, by the size that it has when it is written.
func TestAClusterKeepsOnlySmallRecords(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	h := newHost(t)
	s := h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = unwritable{by{shared, "h1"}, t}, h.root+"/key" })
	for name, test := range map[string]struct {
		intent  Intent
		secrets map[string]string
	}{
		"a command":               {Intent{Command: strings.Repeat("x", maxShared)}, nil},
		"longer as JSON":          {Intent{Command: strings.Repeat("<", maxShared/6)}, nil},
		"an environment":          {Intent{Command: "x", Env: map[string]string{"A": strings.Repeat("x", maxShared)}}, nil},
		"secrets":                 {Intent{Command: "x", KeepAlive: true}, map[string]string{"A": strings.Repeat("x", maxShared)}},
		"more than etcd can take": {Intent{Command: strings.Repeat("x", 1600<<10)}, nil},
	} {
		test.intent.UserID = "alice"
		_, _, err := s.Start(t.Context(), test.intent, quota.Token{}, test.secrets, nil)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "more than the 65536") || !strings.Contains(err.Error(), "in a file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.List("alice")) > 0 || h.done() != "" {
		t.Errorf("%d processes, %s", len(s.List("alice")), h.done())
	}
	alone := newHost(t).serve()
	alone.start(Intent{Command: strings.Repeat("x", 1600<<10)})
	s = h.serve(func(cfg *Config) { cfg.Shared, cfg.KeyFile = by{shared, "h1"}, h.root+"/key" })
	s.start(Intent{Command: strings.Repeat("x", maxShared/2), KeepAlive: true}, map[string]string{"A": strings.Repeat("x", maxShared/4)})
}

// unwritable takes nothing.
type unwritable struct {
	by
	t *testing.T
}

func (u unwritable) Write(string, map[string][]byte) error {
	u.t.Error("it is written")
	return errTest
}

// A process that was found paused stays so until its record is read, which says whether it is to go on.
func TestPausedProcessWaitsForItsRecord(t *testing.T) {
	shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
	h := newHost(t)
	paused := map[string]bool{}
	on := func(cfg *Config) {
		cfg.Shared, cfg.KeyFile = by{shared, "h1"}, h.root+"/key"
		cfg.Sandboxes = pausedIf(func(_, id string) bool { return paused[id] })
	}
	s := h.serve(on)
	stays, goesOn := s.start(Intent{SandboxID: "one"}), s.start(Intent{SandboxID: "two"})
	paused["one"] = true
	s = h.serve(on)
	for _, r := range []Record{stays, goesOn} {
		if !s.Paused("alice", r.ID) {
			t.Errorf("%s is resumed before anything is known of it", r.SandboxID)
		}
	}
	if err := s.Adopt("alice"); err != nil {
		t.Fatal(err)
	}
	s.settle()
	if is, asked := s.run.paused[goesOn.ID]; is || !asked || !s.run.paused[stays.ID] || !s.Paused("alice", stays.ID) || s.Paused("alice", goesOn.ID) {
		t.Errorf("paused are %v", s.run.paused)
	}
	if s.Paused("alice", "none") {
		t.Error("what has no record is not to stay paused")
	}
	shared.holder = "h2"
	if s = h.serve(on); s.Paused("alice", stays.ID) {
		t.Error("what another host has is not to stay paused")
	}
}

// stubborn are programs that ignore SIGTERM: what is left after the grace is killed.
type stubborn struct {
	*fakeRunner
	killed chan struct{}
}

func (s stubborn) Stop(ctx context.Context, i Instance, _ syscall.Signal, grace time.Duration) error {
	select {
	case <-time.After(grace):
		s.end(i.Container, Exit{Signal: syscall.SIGKILL})
		close(s.killed)
	case <-s.killed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// A release is done in its time, however long the grace is, also of a process that somebody stops already.
func TestAReleaseKillsInTime(t *testing.T) {
	for name, test := range map[string]struct {
		grace    time.Duration
		stopping bool
		takes    time.Duration
	}{
		"a long grace":                        {30 * time.Second, false, 15 * time.Second},
		"a short grace":                       {8 * time.Second, false, 8 * time.Second},
		"a long grace, and it is stopped now": {10 * time.Minute, true, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := &sharedRecords{holder: "h1", values: map[string][]byte{}}
				h := newHost(t)
				s := h.serve(func(cfg *Config) {
					cfg.Shared, cfg.KeyFile, cfg.Bounds.StopGrace = by{shared, "h1"}, h.root+"/key", test.grace
					cfg.Runner = stubborn{cfg.Runner.(*fakeRunner), make(chan struct{})}
				})
				r := s.start(Intent{KeepAlive: true})
				if test.stopping {
					go func() { _, _ = s.Stop(context.Background(), "alice", r.ID, syscall.SIGTERM) }()
					synctest.Wait()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				begun := time.Now()
				err := s.Release(ctx, "alice")
				if took := time.Since(begun); err != nil || took != test.takes || h.count() != 0 || len(s.List("alice")) != 0 {
					t.Errorf("after %s: %v, %d containers, %d processes", took, err, h.count(), len(s.List("alice")))
				}
			})
		})
	}
}
