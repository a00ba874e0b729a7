package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/cluster/changes"
	"github.com/daycare-run/sandbox/internal/errs"
)

// A host that has joined has a key /members/<host> that no lease ends. The key is deleted when the
// host's fence reports that nothing runs there, or when cluster.fenceCommand has succeeded. A host
// that joins with another lease writes a new one, whose revision is the host's epoch. /held/<user>
// outlives the seat: it is the host that held the user last, with its epoch then.

// held is the host that held a user last.
type held struct {
	Host  string `json:"host"`
	Epoch int64  `json:"epoch"`
}

// ErrNotFenced is returned for a user whose host is lost and may still run something:
// cluster.fenceCommand has not succeeded yet.
var ErrNotFenced = fmt.Errorf("it may still run something: %w", cerrdefs.ErrUnavailable)

// atHostError says that a user's home is only on one host.
type atHostError struct{ host string }

func (e atHostError) Error() string { return "the home is on host " + strconv.Quote(e.host) }

// lastly claims a seat for a user whom a host has held before, if the answer to the first try says
// so.
func (c *Cluster) lastly(ctx context.Context, user string, target Node,
	answer *clientv3.TxnResponse, conditions []clientv3.Cmp,
	then []clientv3.Op) (*clientv3.TxnResponse, error) {
	if answer.Succeeded {
		return answer, nil
	}
	kvs := answer.Responses[1].GetResponseRange().Kvs
	if len(answer.Responses[0].GetResponseRange().Kvs) > 0 || len(kvs) == 0 {
		return answer, nil
	}
	var before held
	if err := json.Unmarshal(kvs[0].Value, &before); err != nil {
		return nil, fmt.Errorf("cannot read who held user %q: %w", user, err)
	}
	conditions = append(conditions,
		clientv3.Compare(clientv3.ModRevision(keyOf("held", user)), "=", kvs[0].ModRevision))
	if before.Host != target.Name && c.cfg.LocalHomes {
		return nil, atHostError{before.Host}
	}
	waits := before.Host != target.Name && c.cfg.Fences
	if waits {
		conditions = append(conditions,
			clientv3.Compare(clientv3.ModRevision(keyOf("members", before.Host)), "!=",
				before.Epoch))
	}
	answer, err := c.etcd.Txn(ctx).If(conditions...).Then(then...).
		Else(clientv3.OpGet(keyOf("seats", user)), clientv3.OpGet(keyOf("members", before.Host))).
		Commit()
	if err != nil || answer.Succeeded {
		return answer, err
	}
	if kvs := answer.Responses[1].GetResponseRange().Kvs; waits && len(kvs) > 0 &&
		kvs[0].ModRevision == before.Epoch {
		return nil, fmt.Errorf(
			"host %q, which held the user, is lost, and cluster.fenceCommand has not succeeded on it yet: %w",
			before.Host, ErrNotFenced)
	}
	return answer, nil
}

// Left records that nothing runs any more of what a host ran on a lease. It is called after
// everything there was killed.
func Left(ctx context.Context, etcd *Etcd, host string, lease int64) error {
	key := Prefix + "members/" + host
	_, err := etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(key), "=", strconv.FormatInt(lease, 10))).
		Then(clientv3.OpDelete(key)).Commit()
	return err
}

// Fencing configures FenceLost.
type Fencing struct {
	// Run makes sure that nothing runs on a host, or fails. The epoch is that of the host's lease.
	// It is a function, as an argument of FenceLost would be.
	Run func(ctx context.Context, host string, epoch int64) error
	// Limit is how long Run may take, Again is how long to wait before the next try.
	Limit, Again time.Duration
}

// FenceLost fences off each host that was lost while it held users: it calls Run, on one of the
// hosts at a time, until Run has succeeded. It returns when ctx ends.
func (c *Cluster) FenceLost(ctx context.Context, f Fencing) {
	var running sync.WaitGroup
	defer running.Wait()
	var mu sync.Mutex
	busy := map[string]bool{}
	for ctx.Err() == nil {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		for host, epoch := range c.lost() {
			mu.Lock()
			begun := busy[host]
			busy[host] = true
			mu.Unlock()
			if begun {
				continue
			}
			running.Go(func() {
				if err := c.fenceOff(ctx, f, host, epoch); err != nil && ctx.Err() == nil {
					c.cfg.Log.Error().Err(err).Str("host", host).Int64("epoch", epoch).
						Msg("cannot fence a lost host off yet, so its users wait")
				}
				Wait(ctx, f.Again)
				mu.Lock()
				defer mu.Unlock()
				delete(busy, host)
			})
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// Wait reports whether the time has passed before ctx ended.
func Wait(ctx context.Context, long time.Duration) bool {
	select {
	case <-time.After(long):
		return true
	case <-ctx.Done():
		return false
	}
}

// lost returns the hosts that had a lease and have not reported that nothing runs there, with their
// epochs.
func (c *Cluster) lost() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := map[string]int64{}
	for host, epoch := range c.members {
		if _, lives := c.nodes[host]; !lives {
			list[host] = epoch
		}
	}
	return list
}

// fenceOff fences off a host, if no other host is doing so. The key that names the host doing it is
// on that host's lease.
func (c *Cluster) fenceOff(ctx context.Context, f Fencing, host string, epoch int64) error {
	own, lives := c.Node(c.cfg.Host)
	if !lives {
		return nil
	}
	there := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(keyOf("members", host)), "=", epoch),
		clientv3.Compare(clientv3.CreateRevision(keyOf("nodes", host)), "=", 0),
	}
	if some, err := c.anyHeld(ctx, func(by held) bool { return by == held{host, epoch} }); err != nil || !some { // none is added now
		if err == nil {
			_, err = c.commit(ctx, there, clientv3.OpDelete(keyOf("members", host)))
		}
		return err
	}
	key := keyOf("fencing", host)
	elected, err := c.commit(ctx, append(there,
		clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
		clientv3.Compare(clientv3.ModRevision(keyOf("nodes", own.Name)), "=", own.revision),
	), clientv3.OpPut(key, own.Name, clientv3.WithLease(clientv3.LeaseID(own.Lease))))
	if err != nil {
		return err
	}
	mine := elected.Header.Revision
	if !elected.Succeeded {
		kvs := elected.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 || string(kvs[0].Value) != own.Name || kvs[0].Lease != own.Lease {
			return nil // another host does it, or the lost host is back
		}
		mine = kvs[0].CreateRevision // written by this service before it was restarted
	}
	running, cancel := context.WithTimeout(ctx, f.Limit)
	err = f.Run(running, host, epoch)
	cancel()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	then := []clientv3.Op{clientv3.OpDelete(key)}
	if err == nil {
		then = append(then, clientv3.OpDelete(keyOf("members", host)))
	}
	done, failed := c.commit(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", mine)}, then...)
	if err = errors.Join(err, failed); err == nil && !done.Succeeded {
		err = errors.New("this host lost its lease while cluster.fenceCommand ran")
	}
	c.cfg.Events.Tell(ctx, "", changes.FenceCommand{Host: host, Epoch: epoch, Err: err})
	return failed
}

// commit does the operations if the conditions hold, and otherwise gets the key of the first
// operation.
func (c *Cluster) commit(ctx context.Context, conditions []clientv3.Cmp,
	then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	return c.etcd.Txn(ctx).If(conditions...).Then(then...).
		Else(clientv3.OpGet(string(then[0].KeyBytes()))).Commit()
}

// anyHeld reports whether there is a user for whose last holder is returns true.
func (c *Cluster) anyHeld(ctx context.Context, is func(held) bool) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	all, err := c.etcd.Get(ctx, keyOf("held", ""), clientv3.WithPrefix())
	if err != nil {
		return false, err
	}
	for _, kv := range all.Kvs {
		var by held
		if err := json.Unmarshal(kv.Value, &by); err != nil || is(by) {
			return true, err
		}
	}
	return false, nil
}

// Remove forgets a lost host, and that it was drained. The caller vouches that nothing runs there.
func (c *Cluster) Remove(ctx context.Context, host string) error {
	n, lives := c.Node(host)
	switch {
	case lives:
		return errs.Conflict(
			"host %q has a lease, so it is in the cluster: drain it, stop its sandboxd and then its fence, and remove it when it is shown as lost (sandbox node list)",
			host)
	case n.epoch == 0 && !n.Draining:
		return errs.NotFound(
			"host %q is not in the cluster: sandbox node list shows which hosts are", host)
	}
	waited, err := c.anyHeld(ctx, func(by held) bool {
		return by.Host == host && (c.cfg.LocalHomes || c.cfg.Fences && by.Epoch == n.epoch)
	})
	switch {
	case err != nil:
		return unanswered(ctx, err)
	case waited && c.cfg.LocalHomes:
		return errs.Conflict(
			"host %q has homes that no other has (cluster.homes is local), so their users wait for it: bring it back, or a machine with its name (cluster.name) and its homes",
			host)
	case waited:
		return errs.Conflict(
			"host %q held users, who wait until cluster.fenceCommand has succeeded on it; the host is forgotten then. If the command can no longer succeed, make sure that the host is off for good, and have the program exit with 0 for it",
			host)
	}
	done, err := c.commit(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(keyOf("members", host)), "=", n.epoch),
		clientv3.Compare(clientv3.CreateRevision(keyOf("nodes", host)), "=", 0),
		clientv3.Compare(clientv3.CreateRevision(keyOf("fencing", host)), "=", 0),
	}, clientv3.OpDelete(keyOf("members", host)), clientv3.OpDelete(keyOf("drains", host)))
	switch {
	case err != nil:
		return unanswered(ctx, err)
	case !done.Succeeded:
		return errs.Conflict(
			"host %q is back, or cluster.fenceCommand runs on it: look at sandbox node list and ask again",
			host)
	}
	deleted := func(r *etcdserverpb.ResponseOp) bool {
		return r.GetResponseDeleteRange().GetDeleted() > 0
	}
	if !slices.ContainsFunc(done.Responses, deleted) { // it was forgotten already
		return nil
	}
	return c.Reached(ctx, done.Header.Revision)
}

// Lost returns the names of the hosts that are gone and may still run something.
func (c *Cluster) Lost() []string { return slices.Sorted(maps.Keys(c.lost())) }
