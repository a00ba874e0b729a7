package decisions_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

func TestATally(t *testing.T) {
	log := decisions.New(10)
	log.Add(denied("ann", "before.test"))
	tally := log.Tally("c-ann")
	for _, d := range []decisions.Decision{
		denied("ann", "a.test"),
		with(denied("ann", "a.test"), func(d *decisions.Decision) { d.Type = "AAAA" }),
		denied("bob", "b.test"),
		with(denied("ann", "fine.test"), func(d *decisions.Decision) { d.Verdict = decisions.Allowed }),
		with(denied("ann", "a.test"), func(d *decisions.Decision) { d.Via, d.Type, d.Port = decisions.TLS, "", 443 }),
		with(denied("ann", "a.test"), func(d *decisions.Decision) { d.Reason = "private" }),
		with(denied("ann", ""), func(d *decisions.Decision) { d.Verdict = decisions.Limited }),
		with(denied("ann", ""), func(d *decisions.Decision) { d.Verdict = decisions.Malformed }),
		with(denied("ann", "down.test"), func(d *decisions.Decision) { d.Verdict = decisions.Failed }),
		denied("ann", "a.test"),
	} {
		log.Add(d)
	}
	lines, more := tally.End()
	equal(t, "lines", lines, []decisions.Summary{
		{Name: "a.test", Via: decisions.DNS, Verdict: decisions.Denied, Reason: "name", Count: 3},
		{Name: "a.test", Via: decisions.TLS, Verdict: decisions.Denied, Reason: "name", Count: 1},
		{Name: "a.test", Via: decisions.DNS, Verdict: decisions.Denied, Reason: "private", Count: 1},
		{Name: "", Via: decisions.DNS, Verdict: decisions.Limited, Reason: "name", Count: 1},
		{Name: "", Via: decisions.DNS, Verdict: decisions.Malformed, Reason: "name", Count: 1},
		{Name: "down.test", Via: decisions.DNS, Verdict: decisions.Failed, Reason: "name", Count: 1},
	})
	equal(t, "more", more, 0)
}

func TestATallyWaitsForWhatIsLate(t *testing.T) {
	log := decisions.New(10)
	late := func(name string) func() { return func() { log.Add(denied("ann", name)) } }
	end := log.Late(late("gone.test"))
	log.Late(late("late.test"))
	end()
	tally := log.Tally("c-ann")
	lines, _ := tally.End()
	equal(t, "lines", lines, []decisions.Summary{{Name: "late.test", Via: decisions.DNS, Verdict: decisions.Denied, Reason: "name", Count: 1}})
}

func TestTalliesOfOneContainer(t *testing.T) {
	log := decisions.New(10)
	count := func(tally *decisions.Tally) (total uint64) {
		lines, _ := tally.End()
		for _, line := range lines {
			total += line.Count
		}
		return total
	}
	add := func() { log.Add(denied("ann", "a.test")) }

	first := log.Tally("c-ann")
	add()
	second, other := log.Tally("c-ann"), log.Tally("c-bob")
	add()
	add()
	equal(t, "first", count(first), 3)
	add()
	equal(t, "second", count(second), 3)
	equal(t, "other", count(other), 0)
	add()
	equal(t, "first, ended again", count(first), 0)
	equal(t, "a new one", count(log.Tally("c-ann")), 0)
}

// Next returns each line of a tally as it comes, and once.
func TestNewsOfATally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := decisions.New(10)
		first := log.Tally("c-ann")
		log.Add(denied("ann", "a.test"))
		log.Add(denied("ann", "b.test"))
		log.Add(denied("ann", "a.test"))
		next := func(tally *decisions.Tally) (seen []string) {
			t.Helper()
			lines, err := tally.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range lines {
				seen = append(seen, fmt.Sprint(line.Name, " x", line.Count))
			}
			return seen
		}
		equal(t, "at once", next(first), []string{"a.test x2", "b.test x1"})
		second := log.Tally("c-ann")
		log.Add(denied("ann", "a.test"))
		equal(t, "what is old to one and new to another", next(second), []string{"a.test x1"})

		got := make(chan []string)
		go func() { got <- next(first) }()
		synctest.Wait()
		log.Add(denied("ann", "b.test")) // old
		log.Add(denied("bob", "d.test"))
		synctest.Wait()
		log.Add(denied("ann", "c.test"))
		equal(t, "later", <-got, []string{"c.test x1"})

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := first.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		lines, _ := first.End()
		counts := map[string]uint64{}
		for _, line := range lines {
			counts[line.Name] = line.Count
		}
		equal(t, "in the end", counts, map[string]uint64{"a.test": 3, "b.test": 2, "c.test": 1})
	})
}

func TestATallyIsBounded(t *testing.T) {
	for _, row := range []struct{ names, lines, more int }{
		{64, 64, 0}, {65, 64, 1}, {100, 64, 36}, {1064, 64, 1000}, {5000, 64, 1000},
	} {
		log := decisions.New(10)
		tally := log.Tally("c-ann")
		for range 2 {
			for i := range row.names {
				log.Add(denied("ann", fmt.Sprint(i, ".test")))
			}
		}
		// Another line for a name that has one is left out, but the name is not.
		log.Add(with(denied("ann", "0.test"), func(d *decisions.Decision) { d.Reason = "private" }))
		lines, more := tally.End()
		for i, line := range lines[:64] {
			equal(t, "line", line, decisions.Summary{
				Name: fmt.Sprint(i, ".test"), Via: decisions.DNS, Verdict: decisions.Denied, Reason: "name", Count: 2,
			})
		}
		if row.names > 64 {
			equal(t, fmt.Sprint("lines of ", row.names), len(lines), row.lines)
		}
		equal(t, fmt.Sprint("more of ", row.names), more, row.more)
	}
}
