package calls

import (
	"fmt"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/events"
)

func ended(user string, total time.Duration, change ...func(*Exec)) *events.Event {
	e := Exec{Outcome: OK, InContainer: true, Start: total / 2, FirstByte: total, Total: total}
	for _, f := range change {
		f(&e)
	}
	return &events.Event{Kind: events.Call, User: user, Detail: Event{What: Ended, Exec: e}}
}

func TestHour(t *testing.T) {
	now := time.Unix(60_000_000, 0)
	h := &Hour{now: func() time.Time { return now }}
	h.Observe(ended("ann", time.Second))
	now = now.Add(59 * time.Minute)
	for range 90 {
		h.Observe(ended("ann", 10*time.Millisecond))
	}
	for range 10 {
		h.Observe(ended("ben", time.Second, func(e *Exec) { e.Cold = true }))
	}
	h.Observe(ended("ben", 0, func(e *Exec) { *e = Exec{Outcome: Refused} }))
	h.Observe(&events.Event{Kind: events.Call, User: "ben", Detail: Event{What: Began}})
	minutes, all := h.Minutes(nil)
	if len(minutes) != 60 || minutes[0].Calls != 1 || minutes[59].Calls != 101 || minutes[59].Refused != 1 || all.Calls != 102 {
		t.Fatalf("%d, %+v, %+v, %+v", len(minutes), minutes[0], minutes[59], all)
	}
	near := func(what string, got, want time.Duration) {
		t.Helper()
		if got < want*4/5 || got > want*6/5 {
			t.Errorf("%s: %v, want about %v", what, got, want)
		}
	}
	warm, cold := minutes[59].Ways[0], minutes[59].Ways[1]
	if warm.Way != "warm" || warm.Calls != 90 || cold.Way != "cold" || cold.Calls != 10 {
		t.Errorf("%+v, %+v", warm, cold)
	}
	near("warm to the end", warm.End.P95, 10*time.Millisecond)
	near("warm to the start", warm.Start.P50, 5*time.Millisecond)
	near("cold to the first byte", cold.FirstByte.P50, time.Second)
	if _, ofBen := h.Minutes(func(user string) bool { return user == "ben" }); ofBen.Calls != 11 || len(ofBen.Ways) != 1 {
		t.Errorf("%+v", ofBen)
	}
	now = now.Add(time.Minute)
	if _, all := h.Minutes(nil); all.Calls != 101 {
		t.Errorf("what is older than an hour counts: %+v", all)
	}
}

// However many users call in a minute, a bounded number is kept; callers who act for some users learn nothing about the rest.
func TestHourIsBounded(t *testing.T) {
	h := NewHour()
	now := time.Now()
	h.now = func() time.Time { return now }
	for i := range 2 * hourUsers {
		h.Observe(ended(fmt.Sprint("user-", i), time.Millisecond))
	}
	_, all := h.Minutes(nil)
	_, scoped := h.Minutes(func(string) bool { return true })
	if all.Calls != 2*hourUsers || scoped.Calls != hourUsers {
		t.Errorf("%d of all, %d of users", all.Calls, scoped.Calls)
	}
}
