package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/events"
)

// keeper is called with the keys of one kind.
type keeper struct {
	kind string
	told func(name string, value []byte, revision int64)
}

// watcher queues changed seats for a goroutine in Watch.
type watcher struct {
	queue []Seat
	wake  chan struct{} // has an element while queue is not empty
}

// Keep registers told, which is called in order with each record of a kind, and with a nil value
// for a deleted one. When Reached returns, told was called with all records up to that revision.
// Keep is called before Run, and told must not block.
func (c *Cluster) Keep(kind string, told func(name string, value []byte, revision int64)) {
	c.keepers = append(c.keepers, keeper{kind, told})
}

// retryAfter is how long to wait before asking etcd again.
const retryAfter = 250 * time.Millisecond

// Run keeps the known state current until ctx ends. It closes first after everything has been read
// once.
func (c *Cluster) Run(ctx context.Context, first chan<- struct{}) {
	known := map[string]bool{} // keys, to find those that were deleted between two watches
	for ctx.Err() == nil {
		err := c.load(ctx, known)
		if err == nil {
			if first != nil {
				close(first)
				first = nil
			}
			err = c.follow(ctx, known)
		}
		if ctx.Err() == nil {
			c.cfg.Log.Warn().Err(err).Msg("etcd does not answer; asking again")
			Wait(ctx, retryAfter)
		}
	}
}

// Known reports whether etcd has been read once. While etcd does not answer, the known state may be
// out of date.
func (c *Cluster) Known() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revision > 0
}

// pageKeys is how many keys are read at a time, each page within pageLimit: however many keys there
// are, etcd is asked for no more at once.
const (
	pageKeys  = 10_000
	pageLimit = 10 * time.Second
)

// load reads all keys, as they are at one revision.
func (c *Cluster) load(ctx context.Context, known map[string]bool) error {
	there := map[string]bool{}
	var changes []*clientv3.Event
	var revision int64 // the first page's; then all pages are of that
	for from, more := Prefix, true; more; {
		page, err := c.page(ctx, from, revision)
		if err != nil {
			return err
		}
		for _, kv := range page.Kvs {
			there[string(kv.Key)] = true
			changes = append(changes, &clientv3.Event{Type: mvccpb.PUT, Kv: kv})
			from = string(kv.Key) + "\x00" // the least key after it
		}
		revision = cmp.Or(revision, page.Header.Revision)
		more = page.More
	}
	slices.SortFunc(changes, func(a, b *clientv3.Event) int {
		return int(a.Kv.ModRevision - b.Kv.ModRevision)
	})
	var gone []*clientv3.Event
	for key := range known {
		if !there[key] {
			gone = append(gone, &clientv3.Event{Type: mvccpb.DELETE,
				Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: revision}})
		}
	}
	c.take(append(gone, changes...), revision, known)
	return nil
}

// page reads the first keys that are not less than from, at a revision; 0 is the latest.
func (c *Cluster) page(ctx context.Context, from string,
	revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pageLimit)
	defer cancel()
	return c.etcd.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(Prefix)),
		clientv3.WithLimit(pageKeys), clientv3.WithRev(revision))
}

// follow takes changes until etcd's watch ends.
func (c *Cluster) follow(ctx context.Context, known map[string]bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.mu.Lock()
	from := c.revision + 1
	c.mu.Unlock()
	for answer := range c.etcd.Watch(clientv3.WithRequireLeader(ctx), Prefix, clientv3.WithPrefix(),
		clientv3.WithRev(from)) {
		if err := answer.Err(); err != nil {
			return err
		}
		// A watch that is behind gets the events in parts, and each part has the revision that etcd
		// is at.
		revision := answer.Header.Revision
		if n := len(answer.Events); n > 0 {
			revision = answer.Events[n-1].Kv.ModRevision
		}
		c.take(answer.Events, revision, known)
	}
	return ctx.Err()
}

// take makes changes known. It calls the keepers before it announces that the revision is reached.
// The first read publishes no events.
func (c *Cluster) take(changes []*clientv3.Event, revision int64, known map[string]bool) {
	var news []func()
	for _, change := range changes {
		key := string(change.Kv.Key)
		kind, name, _ := strings.Cut(strings.TrimPrefix(key, Prefix), "/")
		value := change.Kv.Value
		if change.Type == mvccpb.DELETE {
			value = nil
			delete(known, key)
		} else {
			known[key] = true
		}
		if happened := c.takeOwn(kind, name, value, change); happened != nil {
			news = append(news, happened)
		}
		for _, k := range c.keepers {
			if k.kind == kind {
				k.told(name, value, change.Kv.ModRevision)
			}
		}
	}
	c.mu.Lock()
	isFirst := c.revision == 0
	c.revision = max(c.revision, revision)
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	if isFirst {
		return
	}
	for _, publish := range news {
		publish()
	}
}

// takeOwn makes a change of a host or a seat known. It returns a function that publishes the
// change's event; nil for none.
func (c *Cluster) takeOwn(kind, name string, value []byte,
	change *clientv3.Event) (happened func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := change.Type == mvccpb.DELETE
	switch kind {
	case "nodes":
		n := Node{Name: name, Lease: change.Kv.Lease, revision: change.Kv.ModRevision}
		if delete(c.nodes, name); !gone && json.Unmarshal(change.Kv.Value, &n) == nil {
			c.nodes[name] = n
		}
	case "members":
		if delete(c.members, name); !gone {
			c.members[name] = change.Kv.ModRevision
		}
	case "drains":
		if delete(c.drains, name); !gone {
			c.drains[name] = true
		}
	case "fencing":
		if delete(c.fencing, name); !gone {
			c.fencing[name] = true
		}
	case "held":
		if taken, is := c.seatTaken(name, value, change.Kv.ModRevision); is {
			return func() { c.cfg.Events.Publish(events.Seat, name, taken) }
		}
		return nil
	case "seats":
		s := Seat{User: name, Host: string(change.Kv.Value), Epoch: change.Kv.CreateRevision,
			Lease: change.Kv.Lease}
		if old, ok := c.seats[name]; ok {
			c.users[old.Host]--
			delete(c.seats, name)
		}
		if gone {
			s = Seat{User: name}
		} else {
			c.seats[name] = s
			c.users[s.Host]++
		}
		for w := range c.watchers {
			w.add(s)
		}
		return nil
	default:
		return nil
	}
	if changed, is := c.nodeChanged(name); is {
		return func() { c.cfg.Events.Publish(events.Node, "", changed) }
	}
	return nil
}

func (w *watcher) add(s Seat) {
	w.queue = append(w.queue, s)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Watch calls told with each seat that is taken or given up, in order, until ctx ends; first with
// the seats that exist. A Seat with an empty Host has been given up. The callback must not block.
func (c *Cluster) Watch(ctx context.Context, told func(Seat)) {
	w := &watcher{wake: make(chan struct{}, 1)}
	c.mu.Lock()
	for _, s := range c.seats {
		w.add(s)
	}
	c.watchers[w] = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers, w)
	}()
	for {
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
		c.mu.Lock()
		queue := w.queue
		w.queue = nil
		c.mu.Unlock()
		for _, s := range queue {
			told(s)
		}
	}
}
