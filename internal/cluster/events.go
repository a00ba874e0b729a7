package cluster

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/daycare-run/sandbox/internal/cluster/changes"
	"github.com/daycare-run/sandbox/internal/events"
)

// Every host learns of the changes of all hosts by watching etcd, so each host's stream of events
// has them.

// state returns the state of a host as far as it is known; mu is held.
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

// nodeChanged returns the event of a host whose state has changed; mu is held.
func (c *Cluster) nodeChanged(host string) (changed changes.Node, has bool) {
	before, now := cmp.Or(c.states[host], "away"), c.state(host)
	c.states[host] = now
	return changes.Node{Name: host, State: now}, before != now
}

// seatTaken returns the event of a user whom a host holds now, or forgets the last host of a user
// who was deleted. What is known already is no event: after a watch has broken, all is read again.
// mu is held.
func (c *Cluster) seatTaken(user string, value []byte,
	revision int64) (taken changes.Seat, has bool) {
	var by held
	before := c.holders[user]
	if delete(c.holders, user); len(value) == 0 || json.Unmarshal(value, &by) != nil {
		return taken, false
	}
	now := Seat{Host: by.Host, Epoch: revision} // written with the seat
	c.holders[user] = now
	taken = changes.Seat{Host: by.Host, Epoch: revision, Here: by.Host == c.cfg.Host}
	if before.Host != by.Host {
		taken.From, taken.FromEpoch = before.Host, before.Epoch
	}
	return taken, before != now
}

// Leased returns a context that ends when this host is fenced; until the host joins again, the
// context has ended. Requests to etcd for a user wait no longer than that, because the fence kills
// a service that does not stop its work for users.
func (c *Cluster) Leased() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leased
}

// Fenced records that this host has no lease any more, until it is up again.
func (c *Cluster) Fenced() {
	c.mu.Lock()
	c.fenced(errLeaseEnded)
	c.states[c.cfg.Host] = "fenced"
	c.mu.Unlock()
	c.cfg.Events.Publish(events.Node, "", changes.Node{Name: c.cfg.Host, State: "fenced"})
}
