package decisions

// maxPending is how many lines are gathered for all calls of a container: more than the few that a
// program alternates between, and so few that they are quickly searched.
const maxPending = 8

// calls has the tallies of one container. There may be hundreds, and a program may flood: so lines
// are gathered here first, where a repeat costs the same for any number of tallies. They are
// reported to all tallies when others need the room, before a tally begins or ends, and when one is
// asked for news. The log's mutex guards it.
type calls struct {
	tallies []*Tally
	waiting []*Tally  // those that Next waits for
	pending []Summary // the oldest first; those that were reported and not seen since have a count of 0
}

func (c *calls) add(d *Decision) {
	line := Summary{Name: d.Name, Via: d.Via, Verdict: d.Verdict, Reason: d.Reason}
	if d.Via == TCP || d.Via == UDP || d.Verdict == Malformed {
		line.Port = d.Port
	}
	for i := range c.pending {
		line.Count = c.pending[i].Count
		if c.pending[i] == line {
			c.pending[i].Count++
			return
		}
	}
	if len(c.pending) == maxPending {
		c.report(1)
	}
	line.Count = 1
	c.pending = append(c.pending, line)
	for _, t := range c.waiting {
		t.wake()
	}
	c.waiting = c.waiting[:0]
}

// report passes the oldest n lines on and drops them.
func (c *calls) report(n int) {
	c.pass(n)
	c.pending = append(c.pending[:0], c.pending[n:]...)
}

// pass passes the oldest n lines on. A repeat of a line that is still remembered wakes nobody.
func (c *calls) pass(n int) {
	for i, line := range c.pending[:n] {
		if line.Count == 0 {
			continue
		}
		for _, t := range c.tallies {
			t.add(line)
		}
		c.pending[i].Count = 0
	}
}
