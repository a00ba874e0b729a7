package decisions_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

var tail = strings.Repeat("."+strings.Repeat("x", 60), 4)

// junk is a name about as long as they get, another for each number.
func junk(i int) string { return strconv.Itoa(i) + tail }

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestAFloodOfNamesDrivesOutItsOwn(t *testing.T) {
	const capacity, flood = 1000, 1_000_000
	before := heap()
	log := decisions.New(capacity)
	follower, err := log.Follow(decisions.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	tally := log.Tally("c-mallory")
	for i := range 300 {
		log.Add(denied("ann", fmt.Sprint(i, ".test")))
	}
	for i := range 50 {
		log.Add(denied("bob", fmt.Sprint(i, ".test")))
	}
	for i := range flood {
		log.Add(denied("mallory", junk(i)))
	}

	// An entry is at most 1 KiB; what waits for a follower is smaller, but may have another name.
	if grown, most := heap()-before, int64((capacity+1024)<<10+256<<10); grown > most {
		t.Errorf("the log takes %d bytes, which is more than %d", grown, most)
	}
	equal(t, "entries of ann", len(log.Recent(decisions.Filter{User: "ann"}, 0)), 300)
	equal(t, "entries of bob", len(log.Recent(decisions.Filter{User: "bob"}, 0)), 50)
	kept := log.Recent(decisions.Filter{User: "mallory"}, 0)
	equal(t, "entries of mallory", len(kept), capacity-350)
	for i, d := range kept {
		equal(t, "what is kept is the latest", d.Name, junk(flood-len(kept)+i))
	}
	lines, more := tally.End()
	equal(t, "lines", len(lines), 64)
	equal(t, "more", more, 1000)
	_, lost, err := follower.Next(t.Context())
	equal(t, "told", err == nil, true)
	equal(t, "lost", lost, flood+350-1024)
	follower.Close()
}

func TestFloodersShareWhatOthersLeave(t *testing.T) {
	log := decisions.New(100)
	for i := range 10 {
		log.Add(denied("ann", junk(i)))
	}
	// Who comes later gets its share from those who came before.
	for _, user := range []string{"m1", "m2", "m3"} {
		for i := range 1000 {
			log.Add(denied(user, junk(i)))
		}
	}
	got := map[string]int{}
	for _, d := range log.Recent(decisions.Filter{}, 0) {
		got[d.User]++
	}
	equal(t, "entries", got, map[string]int{"ann": 10, "m1": 30, "m2": 30, "m3": 30})
}

func TestAUserAloneHasTheWholeCapacity(t *testing.T) {
	log := decisions.New(100)
	for i := range 200 {
		log.Add(denied("ann", junk(i)))
	}
	equal(t, "entries", len(log.Recent(decisions.Filter{User: "ann"}, 0)), 100)
}

// TestBusiestUserMakesRoom checks at each step of a random history whose entry was removed.
func TestBusiestUserMakesRoom(t *testing.T) {
	const capacity, users = 20, 6
	log, random := decisions.New(capacity), rand.New(rand.NewPCG(1, 2))
	var before []decisions.Decision
	for range 5000 {
		added := denied(strconv.Itoa(min(random.IntN(users), random.IntN(users))), strconv.Itoa(random.IntN(30)))
		log.Add(added)
		after := log.Recent(decisions.Filter{}, 0)

		entries, oldest, kept := map[string]int{}, map[string]string{}, map[string]bool{}
		for _, d := range after {
			kept[d.User+" "+d.Name] = true
		}
		var gone []decisions.Decision
		for _, d := range before {
			if entries[d.User]++; entries[d.User] == 1 {
				oldest[d.User] = d.Name
			}
			if !kept[d.User+" "+d.Name] {
				gone = append(gone, d)
			}
		}
		if len(after) > capacity || len(after) < len(before) || len(gone) > 1 {
			t.Fatalf("%d entries became %d, of which %d are gone", len(before), len(after), len(gone))
		}
		for _, d := range gone {
			most := slices.Max(slices.Collect(maps.Values(entries)))
			if entries[d.User] != most || oldest[d.User] != d.Name || entries[added.User] == most && d.User != added.User {
				t.Fatalf("%v went for %v, with %v", d, added, entries)
			}
		}
		before = after
	}
}

func TestTalliesLeaveNothing(t *testing.T) {
	log := decisions.New(10)
	before := heap()
	for i := range 100_000 {
		log.Tally(strconv.Itoa(i)).End()
	}
	if grown := heap() - before; grown > 1<<20 {
		t.Errorf("the log takes %d bytes more", grown)
	}
	runtime.KeepAlive(log)
}

func TestMoreUsersThanEntries(t *testing.T) {
	log := decisions.New(3)
	for i := range 10 {
		log.Add(denied(strconv.Itoa(i), "a.test"))
		equal(t, "entries", len(log.Recent(decisions.Filter{}, 0)), min(i+1, 3))
		equal(t, "entries of the latest", len(log.Recent(decisions.Filter{User: strconv.Itoa(i)}, 0)), 1)
	}
}

func TestTheLeastRecentlySeenGoes(t *testing.T) {
	for _, row := range []struct {
		capacity   int
		asked, has string
	}{
		{0, "a b", "b"},
		{1, "a b", "b"},
		{1, "a a b b", "b"},
		{3, "a b c d", "b c d"},
		{3, "a b c a d", "c a d"},
		{3, "a b c a b d e", "b d e"},
		{3, "a b c c c d a", "c d a"},
	} {
		log := decisions.New(row.capacity)
		for _, name := range strings.Fields(row.asked) {
			log.Add(denied("ann", name))
		}
		equal(t, row.asked, names(log.Recent(decisions.Filter{}, 0)), strings.Fields(row.has))
	}
}

func TestEvictedDecisionsCountAnew(t *testing.T) {
	log := decisions.New(1)
	for _, name := range []string{"a.test", "a.test", "b.test", "a.test"} {
		log.Add(denied("ann", name))
	}
	want := with(denied("ann", "a.test"), func(d *decisions.Decision) { d.Seq, d.Count, d.First = 4, 1, start })
	equal(t, "recent", log.Recent(decisions.Filter{}, 0), []decisions.Decision{want})
}
