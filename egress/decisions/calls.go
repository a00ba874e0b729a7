package decisions

// maxUntold is how many lines are gathered for all calls of a container: more than the few that a
// program alternates between, and so few that they are quickly searched.
const maxUntold = 8

// calls has the tallies of one container. There may be hundreds, and a program may flood: so lines are
// gathered here first, where a repeat costs the same for any number of tallies, and told to all of them
// when others need the room, and before a tally begins or ends. The log's mutex guards it.
type calls struct {
	tallies []*Tally
	untold  []Summary // the oldest first
}

func (c *calls) add(d *Decision) {
	line := Summary{Name: d.Name, Via: d.Via, Verdict: d.Verdict, Reason: d.Reason}
	for i := range c.untold {
		line.Count = c.untold[i].Count
		if c.untold[i] == line {
			c.untold[i].Count++
			return
		}
	}
	if len(c.untold) == maxUntold {
		c.tell(1)
	}
	line.Count = 1
	c.untold = append(c.untold, line)
}

// tell passes the oldest n lines on.
func (c *calls) tell(n int) {
	for _, line := range c.untold[:n] {
		for _, t := range c.tallies {
			t.add(line)
		}
	}
	c.untold = append(c.untold[:0], c.untold[n:]...)
}
