package cluster

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/daycare-run/sandbox/internal/cluster/changes"
	"github.com/daycare-run/sandbox/internal/events"
)

// Every host finds out by etcd's watch what becomes of all of them, so each one's stream of events has it.

// state is what a host is as far as is known; mu is held.
func (c *Cluster) state(host string) string {
	_, lives := c.nodes[host]
	_, joined := c.members[host]
	switch {
	case lives && c.drains[host]:
		return "draining"
	case lives:
		return "up"
	case joined && c.fencing[host]:
		return "fencing"
	case joined:
		return "lost"
	}
	return "away"
}

// nodeChanged returns the event of a host that is not as it was; mu is held.
func (c *Cluster) nodeChanged(host string) (changed changes.Node, has bool) {
	before, now := cmp.Or(c.states[host], "away"), c.state(host)
	c.states[host] = now
	return changes.Node{Name: host, State: now}, before != now
}

// seatTaken returns the event of a user who is held by a host now, or forgets who held one that is no more; mu is held.
func (c *Cluster) seatTaken(user string, value []byte, revision int64) (taken changes.Seat, has bool) {
	var by held
	before := c.holders[user]
	if delete(c.holders, user); len(value) == 0 || json.Unmarshal(value, &by) != nil {
		return taken, false
	}
	c.holders[user] = Seat{Host: by.Host, Epoch: revision} // written with the seat
	taken = changes.Seat{Host: by.Host, Epoch: revision, Here: by.Host == c.cfg.Host}
	if before.Host != by.Host {
		taken.From, taken.FromEpoch = before.Host, before.Epoch
	}
	return taken, true
}

// Leased returns a context that ends when this host is fenced, or has ended until the host joins again: what etcd is asked
// for a user waits no longer than that, for the fence kills a service that does not stop what it does for users.
func (c *Cluster) Leased() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leased
}

// Fenced says that this host has no lease any more, until it is up again.
func (c *Cluster) Fenced() {
	c.mu.Lock()
	c.fenced(errLeaseEnded)
	c.states[c.cfg.Host] = "fenced"
	c.mu.Unlock()
	c.cfg.Events.Publish(events.Node, "", changes.Node{Name: c.cfg.Host, State: "fenced"})
}
