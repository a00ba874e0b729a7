package calls

import (
	"math"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/events"
)

// Ways are the ways in which a call may get its container.
var Ways = []string{"warm", "frozen", "pooled", "cold"}

const (
	hourMinutes = 60
	// hourUsers is how many users each minute counts separately; the calls of further users are
	// counted under no user.
	hourUsers = 256
	// Times are counted in steps of √2, beginning with fastest.
	timeSteps = 44
	fastest   = 50 * time.Microsecond
)

// Hour counts the calls of the last hour by minute, user and way. It is bounded, and safe for
// concurrent use.
type Hour struct {
	now func() time.Time

	mu      sync.Mutex
	minutes [hourMinutes]countedMinute
}

type countedMinute struct {
	begun int64 // minutes since 1970
	users map[string]*counted
}

// counted counts calls and their times. A way's counts are allocated with its first call.
type counted struct {
	calls, refused int
	ways           [4]*[wayTimes]steps
}

// The times of a call that are counted: to its start, its first byte of output and its end.
const (
	toStart = iota
	toFirstByte
	toEnd
	wayTimes
)

type steps [timeSteps]uint32

// NewHour returns an hour without calls.
func NewHour() *Hour { return &Hour{now: time.Now} }

// Observe is a sink for events.
func (h *Hour) Observe(e *events.Event) {
	call, is := e.Detail.(Event)
	if !is || call.What != Ended {
		return
	}
	minute := h.now().Unix() / 60
	h.mu.Lock()
	defer h.mu.Unlock()
	m := &h.minutes[minute%hourMinutes]
	if m.begun != minute {
		*m = countedMinute{begun: minute, users: map[string]*counted{}}
	}
	user := e.User
	if m.users[user] == nil && len(m.users) >= hourUsers {
		user = ""
	}
	if m.users[user] == nil {
		m.users[user] = &counted{}
	}
	m.users[user].add(call.Exec)
}

func (c *counted) add(e Exec) {
	c.calls++
	if e.Outcome == Refused {
		c.refused++
	}
	for i, way := range Ways {
		if way != e.Way() {
			continue
		}
		if c.ways[i] == nil {
			c.ways[i] = new([wayTimes]steps)
		}
		c.ways[i][toStart].add(e.Decide + e.Container + e.Start)
		c.ways[i][toEnd].add(e.Total)
		if e.FirstByte > 0 {
			c.ways[i][toFirstByte].add(e.FirstByte)
		}
	}
}

func (s *steps) add(d time.Duration) {
	step := int(math.Ceil(2 * math.Log2(float64(max(d, 1))/float64(fastest))))
	s[min(max(step, 0), timeSteps-1)]++
}

// quantile returns a time that the given part of the calls did not exceed, accurate to a fifth; 0
// for none.
func (s *steps) quantile(part float64) time.Duration {
	var all uint32
	for _, n := range s {
		all += n
	}
	rank := uint32(math.Ceil(part * float64(all)))
	for i, n := range s {
		if n >= rank && all > 0 { // the middle of the step
			return time.Duration(float64(fastest) * math.Pow(2, (float64(i)-0.5)/2))
		}
		rank -= min(rank, n)
	}
	return 0
}

// Minute summarizes the calls of a minute.
type Minute struct {
	Begun          time.Time
	Calls, Refused int
	Ways           []WayTimes
}

// WayTimes are the times of the calls that got their container in one way.
type WayTimes struct {
	Way                   string
	Calls                 int
	Start, FirstByte, End Percentiles
}

// Percentiles are the times that 50 and 95 of 100 calls did not exceed.
type Percentiles struct{ P50, P95 time.Duration }

// Minutes returns the last hour, oldest minute first, and its total, for the users in scope; a nil
// scope means all calls, including those of no user.
func (h *Hour) Minutes(scope func(user string) bool) (minutes []Minute, all Minute) {
	now := h.now().Unix() / 60
	h.mu.Lock()
	defer h.mu.Unlock()
	var together counted
	for minute := now - hourMinutes + 1; minute <= now; minute++ {
		var sum counted
		if m := &h.minutes[minute%hourMinutes]; m.begun == minute {
			for user, c := range m.users {
				if scope == nil || user != "" && scope(user) {
					sum.merge(c)
				}
			}
		}
		together.merge(&sum)
		minutes = append(minutes, sum.minute(minute))
	}
	return minutes, together.minute(now - hourMinutes + 1)
}

func (c *counted) merge(other *counted) {
	c.calls, c.refused = c.calls+other.calls, c.refused+other.refused
	for i, times := range other.ways {
		if times == nil {
			continue
		}
		if c.ways[i] == nil {
			c.ways[i] = new([wayTimes]steps)
		}
		for kind := range times {
			for step, n := range times[kind] {
				c.ways[i][kind][step] += n
			}
		}
	}
}

func (c *counted) minute(begun int64) Minute {
	m := Minute{Begun: time.Unix(begun*60, 0).UTC(), Calls: c.calls, Refused: c.refused}
	for i, times := range c.ways {
		if times == nil {
			continue
		}
		way := WayTimes{Way: Ways[i]}
		for _, n := range times[toEnd] {
			way.Calls += int(n)
		}
		for kind, p := range []*Percentiles{&way.Start, &way.FirstByte, &way.End} {
			p.P50, p.P95 = times[kind].quantile(0.5), times[kind].quantile(0.95)
		}
		m.Ways = append(m.Ways, way)
	}
	return m
}
