package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestAfterTheServiceComesBack(t *testing.T) {
	stopped := func(h *host, r Record) { // recorded, and then the service was killed
		r.DesiredState = Stopped
		if err := (store{h.dir()}).write(r); err != nil {
			h.t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		away      func(h *host, r Record)
		want      string // of a process
		keepAlive string // of one that is kept alive
	}{
		"nothing happened": {
			func(*host, Record) {},
			"running/running exit -, pid", "running/running exit -, pid",
		},
		"it ended": {
			func(h *host, r Record) { h.end(r.Instance.Container, Exit{Code: 9}) },
			"running/exited exit 9", "running/exited exit 9, waits 2000ms",
		},
		"it is gone": {
			func(h *host, r Record) { h.change(r.Instance.Container, func(*Instance) bool { return false }) },
			"running/exited exit -, its container is gone", "running/exited exit -, waits 2000ms, its container is gone",
		},
		"its container was started again": {
			func(h *host, r Record) {
				h.change(r.Instance.Container, func(i *Instance) bool { i.Started = i.Started.Add(1); return true })
			},
			"running/exited exit -, its container is gone", "running/exited exit -, waits 2000ms, its container is gone",
		},
		"another container has its name": {
			func(h *host, r Record) {
				h.change(r.Instance.Container, func(i *Instance) bool {
					other := *i
					other.Container = "other"
					h.instances["other"] = other
					return false
				})
			},
			"running/exited exit -, its container is gone", "running/exited exit -, waits 2000ms, its container is gone",
		},
		"the host was restarted": {
			func(h *host, r Record) {
				h.boot = "boot-2"
				h.change(r.Instance.Container, func(*Instance) bool { return false })
			},
			"running/exited exit -, the host was restarted", "running/exited exit -, waits 2000ms, the host was restarted",
		},
		"the host was restarted and its container is there": {
			func(h *host, r Record) { h.boot = "boot-2"; h.end(r.Instance.Container, Exit{Code: 255}) },
			"running/exited exit 255", "running/exited exit 255, waits 2000ms",
		},
		"the host was restarted and something looks like it": {
			func(h *host, _ Record) { h.boot = "boot-2" },
			"running/exited exit -, the host was restarted", "running/exited exit -, waits 2000ms, the host was restarted",
		},
		"it ought to be stopped": {
			stopped,
			"stopped/stopped exit -, SIGTERM", "stopped/stopped exit -, SIGTERM",
		},
		"it ought to be stopped and is": {
			func(h *host, r Record) { stopped(h, r); h.end(r.Instance.Container, Exit{Code: 5}) },
			"stopped/stopped exit 5", "stopped/stopped exit 5",
		},
		"it ought to be stopped and is gone": {
			func(h *host, r Record) {
				stopped(h, r)
				h.change(r.Instance.Container, func(*Instance) bool { return false })
			},
			"stopped/stopped exit -, its container is gone", "stopped/stopped exit -, its container is gone",
		},
		"its pid is another one": {
			func(h *host, r Record) {
				h.change(r.Instance.Container, func(i *Instance) bool { i.PID = 77; return true })
			},
			"running/running exit -, pid", "running/running exit -, pid",
		},
	} {
		for _, keepAlive := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%t", name, keepAlive), func(t *testing.T) {
				h := newHost(t)
				s := h.serve()
				r := s.start(Intent{KeepAlive: keepAlive})
				s.shutdown()
				test.away(h, r)
				s = h.open()
				if got := s.get(r.ID); h.boot != r.BootID && got.PID != 0 {
					t.Errorf("pid %d is of an earlier start of the host", got.PID)
				}
				s.reconcile()
				want := test.want
				if keepAlive {
					want = test.keepAlive
				}
				got := s.get(r.ID)
				says(t, got, want)
				if got.Status != Running {
					if h.count() != 0 {
						t.Errorf("left %d containers", h.count())
					}
				} else if i := h.instances[got.Instance.Container]; got.PID != i.PID || h.done() != "start" {
					t.Errorf("pid is %d, not %d; there was %s", got.PID, i.PID, h.done())
				}
				if s.pass(2 * time.Second); keepAlive && got.DesiredState == Running && len(h.of(r.ID)) != 1 {
					t.Errorf("it runs in %v", h.of(r.ID))
				}
			})
		}
	}
}

func TestContainersWithoutARecordAreRemoved(t *testing.T) {
	h := newHost(t)
	if _, err := h.add(Record{ID: "p-aaaaaaaaaaaa", DesiredState: Running}, nil); err != nil {
		t.Fatal(err)
	}
	h.serve()
	if h.count() != 0 {
		t.Error("it is still there")
	}
}

func TestAWaitGoesOnAfterTheServiceComesBack(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.exits(s.start(Intent{KeepAlive: true}).ID, Exit{Code: 1})
	s.shutdown()
	h.clock.advance(1500 * time.Millisecond)
	s = h.serve()
	if s.pass(499 * time.Millisecond); len(h.of(r.ID)) != 0 {
		t.Error("it was started too early")
	}
	if s.pass(time.Millisecond); len(h.of(r.ID)) != 1 {
		t.Error("it was not started again")
	}
	// A clock that was set back does not make anybody wait for long.
	s.exits(r.ID, Exit{Code: 1})
	s.shutdown()
	h.clock.advance(-time.Hour)
	s = h.serve()
	if s.pass(time.Minute); len(h.of(r.ID)) != 1 {
		t.Error("it was not started again after the clock was set back")
	}
}

// A service may be killed anywhere. What it had written is taken at many places of a story; from each of
// them, and the containers of that moment, the next service must come to a state that makes sense.
func TestKilledAnywhere(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	type moment struct {
		name string
		host *host
	}
	var moments []moment
	take := func(name string) {
		at := &host{t: t, root: t.TempDir(), boot: h.boot, engine: newEngine(t)}
		if err := os.CopyFS(at.dir(), os.DirFS(h.dir())); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		at.made, at.clock.time = h.made, h.clock.Now()
		for c, i := range h.instances {
			at.instances[c], at.exits[c] = i, h.exits[c]
		}
		moments = append(moments, moment{fmt.Sprintf("%d %s", len(moments), name), at})
	}
	s.run.onStart = func(Record) error { take("before a start"); return nil }
	s.run.onStarted = func(Record) error { take("after a start that is not recorded"); return nil }
	s.run.onRemove = func(Instance) error { take("before a removal"); return nil }
	s.run.onExit = func(Instance) error { take("before an exit is recorded"); return nil }
	once := s.start(Intent{Name: "once"})
	kept := s.start(Intent{Name: "kept", KeepAlive: true}, map[string]string{"A": "b"})
	take("both run")
	s.exits(kept.ID, Exit{Code: 1})
	take("one waits")
	s.pass(2 * time.Second)
	if _, err := s.Stop(t.Context(), "alice", kept.ID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	take("one is stopped")
	if err := s.Remove(t.Context(), "alice", once.ID); err != nil {
		t.Fatal(err)
	}
	take("one is removed")
	if len(moments) < 15 {
		t.Fatalf("only %d moments", len(moments))
	}
	for _, m := range moments {
		t.Run(m.name, func(t *testing.T) {
			h := m.host
			h.t = t
			s := h.serve()
			if problems := s.Problems(); len(problems) > 0 {
				t.Errorf("problems: %q", problems)
			}
			s.pass(time.Minute)
			runs := 0
			for _, r := range s.List("alice") {
				in := h.of(r.ID)
				runs += len(in)
				switch {
				case r.Status == Running && !slices.Equal(in, []string{r.Instance.Container}):
					t.Errorf("%s is recorded in %s and runs in %v", r.Name, r.Instance.Container, in)
				case r.Status != Running && len(in) != 0:
					t.Errorf("%s is %s and runs in %v", r.Name, r.Status, in)
				case r.wanted() && r.Status != Running:
					t.Errorf("%s does not come back: %+v", r.Name, r)
				case r.Name == "once" && r.Status == Exited && r.Reason == "":
					t.Error("it does not say why it does not run")
				}
			}
			if h.count() != runs {
				t.Errorf("%d containers, of which %d are recorded", h.count(), runs)
			}
			for _, with := range h.secrets {
				if with["A"] != "b" {
					t.Errorf("started with %v", with)
				}
			}
		})
	}
}

func TestInterruptedStartIsNotRepeated(t *testing.T) {
	for _, keepAlive := range []bool{false, true} {
		t.Run(fmt.Sprint("keepAlive ", keepAlive), func(t *testing.T) {
			h := newHost(t)
			s := h.serve()
			killed := t.TempDir()
			s.run.onStarted = func(Record) error { return os.CopyFS(killed, os.DirFS(h.dir())) }
			r := s.start(Intent{KeepAlive: keepAlive})
			s.shutdown()
			if err := errors.Join(os.RemoveAll(h.dir()), os.Rename(killed, h.dir())); err != nil {
				t.Fatal(err)
			}
			s = h.serve()
			s.pass(time.Hour)
			says(t, s.get(r.ID), "stopped/exited exit -, the service ended while it was being started; start it again if it is still wanted")
			if h.count() != 0 || h.done() != "start" {
				t.Errorf("%d containers, there was %s", h.count(), h.done())
			}
		})
	}
}

func TestAnEngineThatIsAwayIsAskedAgain(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r, other := s.start(Intent{}), s.start(Intent{})
	s.run.onInstances = func() error { return errTest }
	s.reconcile()
	h.end(other.Instance.Container, Exit{Code: 2})
	says(t, s.exits(r.ID, Exit{Code: 1}), "running/running exit -, pid")
	s.pass(2 * time.Second)
	s.run.onInstances = nil
	s.run.onExit = func(Instance) error { return errTest }
	s.pass(4 * time.Second)
	says(t, s.get(r.ID), "running/running exit -, pid")
	s.run.onExit = nil
	s.pass(time.Minute)
	says(t, s.get(r.ID), "running/exited exit 1")
	says(t, s.get(other.ID), "running/exited exit 2")
	if len(h.clock.waiting()) != 0 {
		t.Errorf("it still looks: %v", h.clock.waiting())
	}
}

func TestAnOldListIsNotHeldAgainstANewStart(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	r := s.exits(s.start(Intent{KeepAlive: true}).ID, Exit{Code: 1})
	// The list that was made does not have it yet.
	var once sync.Once
	s.run.onInstances = func() error {
		once.Do(func() {
			p := s.processes[r.ID]
			h.clock.advance(2 * time.Second)
			for len(h.of(r.ID)) == 0 {
				if err := p.take(t.Context()); err != nil {
					t.Error(err)
				}
				p.give()
			}
		})
		return nil
	}
	s.reconcile()
	says(t, s.get(r.ID), "running/running exit 1, restarts 1, pid")
}

func TestFiftyAreAdoptedWithOneQuestion(t *testing.T) {
	h := newHost(t)
	s := h.serve()
	for range 50 {
		s.start(Intent{})
	}
	s.shutdown()
	s = h.open()
	asked := 0
	s.run.onInstances = func() error { asked++; return nil }
	s.run.onStart = func(r Record) error { t.Errorf("%s was started", r.ID); return nil }
	s.run.onExit = func(i Instance) error { t.Errorf("asked how %s ended", i.Process); return nil }
	s.reconcile()
	for _, r := range s.List("alice") {
		says(t, r, "running/running exit -, pid")
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}
