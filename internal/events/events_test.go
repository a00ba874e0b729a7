package events

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"
)

// next returns what is there by now.
func next(t *testing.T, f *Follower) (details []any, gap bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	list, gap, _ := f.Next(ctx)
	for i, e := range list {
		details = append(details, e.Detail)
		if i > 0 && e.Seq <= list[i-1].Seq {
			t.Errorf("%d after %d", e.Seq, list[i-1].Seq)
		}
	}
	return details, gap
}

// What only operators may know is in the log when Tell returns, in the call's own log, and cannot be followed.
func TestTold(t *testing.T) {
	var own, ofCall strings.Builder
	s := New(Log(zerolog.New(&own)))
	f := s.Follow(Filter{}, 0)
	s.Tell(zerolog.New(&ofCall).With().Str("requestId", "r-1").Logger().WithContext(t.Context()), "ann", said("made"))
	s.Tell(t.Context(), "ben", said("gone"))
	s.Tell(t.Context(), "ben", 7)
	s.Publish(Process, "cid", said("ended"))
	if got, want := ofCall.String(), `{"level":"info","requestId":"r-1","user":"ann","message":"made"}`+"\n"; got != want {
		t.Errorf("the call's log: %s", got)
	}
	if got, want := own.String(), `{"level":"info","user":"ben","message":"gone"}`+"\n"+`{"level":"info","user":"cid","message":"ended"}`+"\n"; got != want {
		t.Errorf("the log: %s", got)
	}
	if got, gap := next(t, f); gap || len(got) != 1 || got[0] != said("ended") {
		t.Errorf("followers see %v, gap %v", got, gap)
	}
	if _, is := ParseKind("told"); is {
		t.Error("callers may ask for it")
	}
}

type said string

func (s said) Line(log *zerolog.Logger, user string) {
	Texts(log.Info(), "user", user, "sandbox", "").Msg(string(s))
}

func TestFilters(t *testing.T) {
	var told int
	s := New(func(*Event) { told++ })
	s.Publish(Call, "ann", 1)
	s.Publish(Decision, "ben", 2)
	s.Publish(Container, "", 3)
	s.Publish(Call, "ben", 4)
	onlyBen := func(user string) bool { return user == "ben" }
	for name, tt := range map[string]struct {
		filter Filter
		after  uint64
		want   []any
	}{
		"all":              {Filter{}, 0, []any{1, 2, 3, 4}},
		"resumed":          {Filter{}, 2, []any{3, 4}},
		"a user":           {Filter{User: "ann"}, 0, []any{1}},
		"a kind":           {Filter{Kinds: []Kind{Call}}, 0, []any{1, 4}},
		"two kinds":        {Filter{Kinds: []Kind{Decision, Container}}, 0, []any{2, 3}},
		"scoped":           {Filter{Scope: onlyBen}, 0, []any{2, 4}},
		"scoped, of ann":   {Filter{Scope: onlyBen, User: "ann"}, 0, nil},
		"scoped to nobody": {Filter{Scope: func(string) bool { return false }}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, gap := next(t, s.Follow(tt.filter, tt.after))
			if gap || len(got) != len(tt.want) {
				t.Fatalf("%v, %t; want %v", got, gap, tt.want)
			}
			for i := range got {
				if got[i] != tt.want[i] {
					t.Errorf("%v, want %v", got, tt.want)
				}
			}
		})
	}
	if told != 4 {
		t.Errorf("the sink was told of %d", told)
	}
	(*Stream)(nil).Publish(Call, "ann", 5)
}

// A follower that comes too late gets one gap; a flood of one kind makes no gap in another.
func TestGap(t *testing.T) {
	s := New()
	s.Publish(Process, "ann", -1)
	late := s.Follow(Filter{}, 0)
	processes := s.Follow(Filter{Kinds: []Kind{Process}}, 0)
	for i := range kept[Call] + 10 {
		s.Publish(Call, "ann", i)
	}
	got, gap := next(t, late)
	if !gap || got[0] != -1 || got[1] != 10 || len(got) != Batch {
		t.Errorf("gap %t, %d from %v on", gap, len(got), got[:2])
	}
	count := len(got)
	for {
		got, gap := next(t, late)
		if gap {
			t.Fatal("told twice")
		}
		if len(got) == 0 {
			break
		}
		count += len(got)
	}
	if count != kept[Call]+1 {
		t.Errorf("%d events", count)
	}
	if got, gap := next(t, processes); gap || len(got) != 1 {
		t.Errorf("%v, %t", got, gap)
	}
}

func TestWaitsForWhatMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		f := s.Follow(Filter{User: "ann"}, s.Now())
		came := make(chan any, 1)
		go func() {
			list, _, err := f.Next(t.Context())
			if err != nil || len(list) != 1 {
				t.Error(list, err)
			}
			came <- list[0].Detail
		}()
		synctest.Wait()
		s.Publish(Call, "ben", 1)
		synctest.Wait()
		select {
		case <-came:
			t.Fatal("of another user")
		default:
		}
		s.Publish(Call, "ann", 2)
		if got := <-came; got != 2 {
			t.Error(got)
		}
	})
}

// A kind named repeatedly counts once: otherwise each mention would search the ring, and return its events, under the lock.
func TestKindsCountOnce(t *testing.T) {
	s := New()
	for range 10 {
		s.Publish(Call, "alice", nil)
	}
	f := s.Follow(Filter{Kinds: slices.Repeat([]Kind{Call, Decision}, 10_000)}, 0)
	list, _, err := f.Next(t.Context())
	if err != nil || len(list) != 10 || cap(list) > Batch {
		t.Errorf("%d events, with room for %d: %v", len(list), cap(list), err)
	}
}

type detail struct {
	id, what, sandbox, command string
}

func BenchmarkPublish(b *testing.B) {
	run := func(b *testing.B, s *Stream) {
		b.ReportAllocs()
		for b.Loop() {
			s.Publish(Call, "ann", detail{"a", "began", "agent-7", "ls"})
		}
	}
	b.Run("nobody", func(b *testing.B) { run(b, New()) })
	b.Run("one who does not read", func(b *testing.B) {
		s := New()
		s.Follow(Filter{}, 0)
		run(b, s)
	})
	b.Run("one who reads", func(b *testing.B) {
		s := New()
		f := s.Follow(Filter{}, 0)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				_, _, _ = f.Next(ctx)
			}
		}()
		run(b, s)
		cancel()
		<-done
	})
}
