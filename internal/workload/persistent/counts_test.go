package persistent

import (
	"testing"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/control"
	"github.com/daycare-run/sandbox/internal/agent/wire"
	"github.com/daycare-run/sandbox/internal/quota"
)

// beginsAfter answers that a command has begun, when something else has been done.
func beginsAfter(do func()) func(*yamux.Stream, control.Request) {
	return func(s *yamux.Stream, q control.Request) {
		if q.Do == control.Begin {
			do()
			_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: 7})
		}
	}
}

// begin starts a command that somebody follows for a moment.
func begin(t *testing.T, b *Sandbox) {
	t.Helper()
	r, err := b.Start(t.Context(), Command{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

// A command that begins while its sandbox is killed is counted no more than the sandbox is.
func TestACommandBeginsWhileItsSandboxIsKilled(t *testing.T) {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	s := l.open()
	b := l.create(s, Create{})
	l.answer = beginsAfter(func() {
		if err := b.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	})
	begin(t, b)
	if used := l.quotas.Stats().InUse; used[quota.Commands] != 0 || used[quota.Containers] != 0 {
		t.Errorf("nothing runs, and in use are %v", used)
	}
}

// The same where the host gives the sandbox up. When it has it again, commands are counted again.
func TestACommandBeginsWhileItsSandboxIsReleased(t *testing.T) {
	c := newHosts(t)
	one := c.start("one", newLab(t).fakeEngine)
	b := one.create(Create{})
	inUse := func() int { return c.quotas.Stats().InUse[quota.Commands] }
	one.engine.answer = beginsAfter(func() {
		if err := one.s.Release(t.Context(), b.ID()); err != nil {
			t.Error(err)
		}
	})
	begin(t, b)
	if n := inUse(); n != 0 {
		t.Errorf("nothing runs, and %d commands are counted", n)
	}
	one.hold(b.ID())
	one.engine.answer = beginsAfter(func() {})
	begin(t, one.find(b.ID()))
	if n := inUse(); n != 1 {
		t.Errorf("one runs that nobody follows, and %d are counted", n)
	}
	if err := one.find(b.ID()).Kill(t.Context()); err != nil || inUse() != 0 {
		t.Errorf("killed: %v, and %d commands are counted", err, inUse())
	}
}

// What a container has said of its commands counts no more when it has been given up meanwhile.
func TestACountEndsAfterARelease(t *testing.T) {
	c := newHosts(t)
	one := c.open("one", newLab(t).fakeEngine) // nobody else counts
	b := one.create(Create{})
	b.entry.unsure()
	one.engine.answer = func(s *yamux.Stream, _ control.Request) {
		if err := one.s.Release(t.Context(), b.ID()); err != nil {
			t.Error(err)
		}
		b.entry.unsure() // as a call that has lost its way says
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{})
		for _, pid := range []int{7, 0} {
			_ = wire.WriteMessage(s, wire.KindEntry, control.Entry{PID: pid})
		}
	}
	b.entry.recountOne()
	if n := c.quotas.Stats().InUse[quota.Commands]; n != 0 {
		t.Errorf("nothing runs, and %d commands are counted", n)
	}
}

// A follower that leaves a command leaves no later one that has its pid.
func TestAPidIsUsedAgain(t *testing.T) {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	b := l.create(l.open(), Create{})
	l.answer = func(s *yamux.Stream, _ control.Request) {
		_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{PID: 7})
		_ = wire.WriteMessage(s, wire.KindExit, wire.Exit{})
	}
	start := func() *Reader {
		t.Helper()
		r, err := b.Start(t.Context(), Command{Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := start()
	if e, err := first.Next(t.Context()); err != nil || e.End == nil {
		t.Fatalf("%+v, %v", e, err)
	}
	second := start()
	defer second.Close()
	first.Close()
	if n := l.quotas.Stats().InUse[quota.Commands]; n != 1 {
		t.Errorf("the second one runs, and %d are counted", n)
	}
}

// A command that may have begun while the container was asked is asked for again.
func TestACommandMayHaveBegunDuringARecount(t *testing.T) {
	l := newLab(t)
	l.quotas = quota.New(quota.Limits{})
	b := l.create(l.unstarted(), Create{}) // nobody else counts
	says := func(pids ...int) func(*yamux.Stream, control.Request) {
		return func(s *yamux.Stream, _ control.Request) {
			if len(pids) == 0 {
				b.entry.unsure()
			}
			_ = wire.WriteMessage(s, wire.KindAnswer, control.Answer{})
			for _, pid := range append(pids, 0) {
				_ = wire.WriteMessage(s, wire.KindEntry, control.Entry{PID: pid})
			}
		}
	}
	for _, answer := range []func(*yamux.Stream, control.Request){says(), says(7)} {
		l.answer = answer
		b.entry.recountOne()
	}
	if n := l.quotas.Stats().InUse[quota.Commands]; n != 1 {
		t.Errorf("one runs, and %d are counted", n)
	}
}
