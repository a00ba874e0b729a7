package decisions_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

func TestRepeatsAreOneEntry(t *testing.T) {
	log := decisions.New(10)
	for i := range 10_000 {
		log.Add(with(denied("ann", "a.test"), func(d *decisions.Decision) { d.Time = at(i) }))
	}
	want := denied("ann", "a.test")
	want.Seq, want.Count, want.First, want.Time = 10_000, 10_000, start, at(9_999)
	equal(t, "recent", log.Recent(decisions.Filter{}, 0), []decisions.Decision{want})
}

func TestDifferentDecisionsAreNotMerged(t *testing.T) {
	log := decisions.New(100)
	changes := map[string]func(*decisions.Decision){
		"nothing":   func(*decisions.Decision) {},
		"user":      func(d *decisions.Decision) { d.User = "bob" },
		"container": func(d *decisions.Decision) { d.Container = "other" },
		"name":      func(d *decisions.Decision) { d.Name = "b.test" },
		"via":       func(d *decisions.Decision) { d.Via = decisions.TLS },
		"port":      func(d *decisions.Decision) { d.Port = 443 },
		"type":      func(d *decisions.Decision) { d.Type = "AAAA" },
		"verdict":   func(d *decisions.Decision) { d.Verdict = decisions.Failed },
		"reason":    func(d *decisions.Decision) { d.Reason = "private" },
	}
	for range 3 {
		for _, change := range changes {
			log.Add(with(denied("ann", "a.test"), change))
		}
	}
	found := log.Recent(decisions.Filter{}, 0)
	equal(t, "entries", len(found), len(changes))
	for _, d := range found {
		equal(t, fmt.Sprint("count of ", d), d.Count, 3)
	}
}

func TestAddNumbersAndDates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := decisions.New(10)
		log.Add(decisions.Decision{Seq: 77, Count: 5, First: start, Name: "a.test"})
		want := decisions.Decision{Seq: 1, Count: 1, First: time.Now(), Time: time.Now(), Name: "a.test"}
		equal(t, "recent", log.Recent(decisions.Filter{}, 0), []decisions.Decision{want})
	})
}

func TestRecentIsInOrderAndTheNewest(t *testing.T) {
	log := decisions.New(1000)
	var want []string
	for i := range 500 { // several pieces
		want = append(want, fmt.Sprint(i, ".test"))
		log.Add(denied("ann", want[i]))
	}
	log.Add(denied("ann", "7.test"))
	want = append(append(want[:7:7], want[8:]...), "7.test")
	equal(t, "all", names(log.Recent(decisions.Filter{}, 0)), want)
	equal(t, "three", names(log.Recent(decisions.Filter{}, 3)), want[497:])
	equal(t, "more than there are", names(log.Recent(decisions.Filter{}, math.MaxInt)), want)
	equal(t, "of nobody", names(log.Recent(decisions.Filter{User: "bob"}, 3)), nil)
	for limit, most := range map[int]int{0: 600, 500: 600, 3: 200} {
		if room := cap(log.Recent(decisions.Filter{}, limit)); room > most {
			t.Errorf("room for %d is taken where at most %d are wanted", room, limit)
		}
	}
}

func TestFilters(t *testing.T) {
	log := decisions.New(10)
	for i, d := range []decisions.Decision{
		denied("ann", "example.org"),
		denied("ann", "www.example.org"),
		denied("bob", "badexample.org"),
		{User: "bob", Container: "c2", Name: "example.org", Via: decisions.TLS, Port: 443, Verdict: decisions.Allowed},
		{Via: decisions.HTTP, Verdict: decisions.Malformed},
	} {
		d.Time = at(i)
		log.Add(d)
	}
	for _, row := range []struct {
		filter decisions.Filter
		want   []uint64
	}{
		{decisions.Filter{}, []uint64{1, 2, 3, 4, 5}},
		{decisions.Filter{User: "ann"}, []uint64{1, 2}},
		{decisions.Filter{User: "an"}, nil},
		{decisions.Filter{Container: "c2"}, []uint64{4}},
		{decisions.Filter{Verdict: decisions.Denied}, []uint64{1, 2, 3}},
		{decisions.Filter{Verdict: decisions.Malformed}, []uint64{5}},
		{decisions.Filter{Via: decisions.TLS}, []uint64{4}},
		{decisions.Filter{Name: "example.org"}, []uint64{1, 2, 4}},
		{decisions.Filter{Name: "www.example.org"}, []uint64{2}},
		{decisions.Filter{Name: "org"}, []uint64{1, 2, 3, 4}},
		{decisions.Filter{Name: "a.www.example.org"}, nil},
		{decisions.Filter{After: 3}, []uint64{4, 5}},
		{decisions.Filter{After: 5}, nil},
		{decisions.Filter{Since: at(1)}, []uint64{2, 3, 4, 5}},
		{decisions.Filter{User: "bob", Verdict: decisions.Denied, Since: at(2)}, []uint64{3}},
		{decisions.Filter{User: "bob", Verdict: decisions.Denied, Since: at(3)}, nil},
	} {
		var got []uint64
		for _, d := range log.Recent(row.filter, 0) {
			got = append(got, d.Seq)
		}
		equal(t, fmt.Sprintf("%+v", row.filter), got, row.want)
	}
}

func TestARepeatIsAfterWhatWasSeen(t *testing.T) {
	log := decisions.New(10)
	log.Add(denied("ann", "a.test"))
	log.Add(denied("ann", "b.test"))
	log.Add(denied("ann", "a.test"))
	equal(t, "after 2", names(log.Recent(decisions.Filter{After: 2}, 0)), []string{"a.test"})
}

func TestTotals(t *testing.T) {
	log := decisions.New(1)
	equal(t, "kinds before anything happened", len(log.Totals()), 25)
	for range 3 {
		log.Add(denied("ann", "a.test"))
		log.Add(denied("bob", "b.test"))
	}
	log.Add(decisions.Decision{Via: decisions.TLS, Verdict: decisions.Allowed})
	totals := log.Totals()
	equal(t, "kinds", len(totals), 25)
	equal(t, "denied", totals[decisions.Kind{Via: decisions.DNS, Verdict: decisions.Denied}], 6)
	equal(t, "allowed", totals[decisions.Kind{Via: decisions.TLS, Verdict: decisions.Allowed}], 1)
	clear(totals)
	equal(t, "kinds in a map of its own", len(log.Totals()), 25)
}

func TestTheNameIsCopied(t *testing.T) {
	log := decisions.New(10)
	large := strings.Repeat("a.test ", 10_000)
	log.Add(denied("ann", large[:6]))
	kept := log.Recent(decisions.Filter{}, 0)[0].Name
	if kept != "a.test" || unsafe.StringData(kept) == unsafe.StringData(large) {
		t.Error("the name that is kept is a part of the caller's string")
	}
}

func TestAddAllocatesNothingForARepeat(t *testing.T) {
	log := decisions.New(10)
	f, err := log.Follow(decisions.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer log.Tally("c-ann").End()
	d := denied("ann", "a.test")
	equal(t, "allocations", testing.AllocsPerRun(2000, func() { log.Add(d) }), 0)
}
