package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/daycare-run/sandbox/internal/errs"
)

// askLimit bounds a request to etcd that a caller waits for.
const askLimit = 5 * time.Second

// Join makes this host a member of the cluster for as long as a lease lives. Nothing may run when
// the lease is new. Seats of this host that are on another lease are given up: they would end with
// it, unannounced.
func (c *Cluster) Join(ctx context.Context, lease int64) error {
	c.mu.Lock()
	if ctx.Err() != nil { // the lease may have passed, and what is asked must not go on under it
		c.mu.Unlock()
		return fmt.Errorf("cannot join the cluster: %w", context.Cause(ctx))
	}
	if c.joined != lease && c.joined != 0 {
		c.fenced(errLeaseEnded)
	}
	if c.joined = lease; c.leased.Err() != nil { // otherwise requests under this lease continue
		c.leased, c.fenced = context.WithCancelCause(context.Background())
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if err := c.giveUpOthers(ctx, lease); err != nil {
		return fmt.Errorf("cannot join the cluster: %w", err)
	}
	value, err := json.Marshal(Node{Address: c.cfg.Address, Version: c.cfg.Version,
		Instance: c.cfg.Instance})
	if err != nil {
		return err
	}
	member, on := keyOf("members", c.cfg.Host), strconv.FormatInt(lease, 10)
	node := clientv3.OpPut(keyOf("nodes", c.cfg.Host), string(value),
		clientv3.WithLease(clientv3.LeaseID(lease)))
	put, err := c.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(keyOf("fencing", c.cfg.Host)), "=", 0)).Then(
		clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(member), "=", on)}, // the service was restarted
			[]clientv3.Op{node}, []clientv3.Op{node, clientv3.OpPut(member, on)}),
	).Commit()
	switch {
	case err != nil:
		return fmt.Errorf("cannot join the cluster: %w", err)
	case !put.Succeeded:
		return errors.New(
			"cannot join the cluster: another host runs cluster.fenceCommand on this one")
	}
	return c.Reached(ctx, put.Header.Revision)
}

// giveUpOthers removes this host's seats that are not on the given lease, which the last Join must
// have.
func (c *Cluster) giveUpOthers(ctx context.Context, lease int64) error {
	all, err := c.etcd.Get(ctx, keyOf("seats", ""), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	c.mu.Lock()
	last := c.joined
	c.mu.Unlock()
	if last != lease { // the read may have been late, and have found seats on the lease of a later Join
		return errLeaseEnded
	}
	for _, kv := range all.Kvs {
		if string(kv.Value) != c.cfg.Host || kv.Lease == lease {
			continue
		}
		same := clientv3.Compare(clientv3.CreateRevision(string(kv.Key)), "=", kv.CreateRevision)
		if _, err := c.etcd.Txn(ctx).If(same).Then(clientv3.OpDelete(string(kv.Key))).
			Commit(); err != nil {
			return err
		}
	}
	return nil
}

// noneTakes returns an error that says why there is no host for a user.
func (c *Cluster) noneTakes() error {
	if len(c.Nodes()) == 0 {
		return fmt.Errorf(
			"no host takes users now: none is known to have a lease; see that etcd answers here and that sandboxd fence runs on each host (sandboxd doctor --cluster): %w",
			cerrdefs.ErrUnavailable)
	}
	return fmt.Errorf(
		"no host takes users now: each that has a lease is draining; sandbox node undrain HOST ends that: %w",
		cerrdefs.ErrUnavailable)
}

// Hold returns a user's seat. If no host holds the user, it claims a seat for the host with the
// fewest users.
func (c *Cluster) Hold(ctx context.Context, user string) (Seat, error) {
	if s, ok := c.Seat(user); ok {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for at := ""; ; {
		c.mu.Lock()
		s, held := c.seats[user]
		target, found := c.place()
		if at != "" {
			target, found = c.nodes[at]
			target.epoch = c.members[at]
		}
		if !held && found {
			c.claiming[target.Name]++
		}
		changed := c.changed
		c.mu.Unlock()
		switch {
		case held:
			return s, nil
		case !found && at != "":
			return Seat{},
				fmt.Errorf("the home of user %q is on host %q alone (cluster.homes is local), which is not there now: ask again when it is (sandbox node list): %w",
					user, at, cerrdefs.ErrUnavailable)
		case !found:
			return Seat{}, c.noneTakes()
		}
		asking, answered := context.WithTimeout(ctx, silentLimit)
		err := c.claim(asking, user, target)
		late := asking.Err() != nil
		answered()
		c.mu.Lock()
		c.claiming[target.Name]--
		c.mu.Unlock()
		if errors.Is(err, errHostGone) {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		if home, is := errors.AsType[atHostError](err); is {
			at = home.host
			continue
		}
		if errors.Is(err, ErrNotFenced) {
			return Seat{}, err
		}
		if err != nil && (late || status.Code(err) == codes.Unavailable) && ctx.Err() == nil { // lost or silent; another may answer
			Wait(ctx, retryAfter)
			continue
		}
		if err != nil {
			return Seat{}, unanswered(ctx, err)
		}
	}
}

var errHostGone = errors.New("the host that was to have the seat has gone")

// claim takes a user's seat for a host, if it is free and the host lives, and waits until the
// seat's host is known here.
func (c *Cluster) claim(ctx context.Context, user string, target Node) error {
	if target.epoch == 0 { // it has reported that nothing runs there any more
		return errHostGone
	}
	seat, last := keyOf("seats", user), keyOf("held", user)
	conditions := []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(seat), "=", 0),
		clientv3.Compare(clientv3.ModRevision(keyOf("nodes", target.Name)), "=", target.revision), // still on the lease known here
		clientv3.Compare(clientv3.ModRevision(keyOf("members", target.Name)), "=", target.epoch),
	}
	by, err := json.Marshal(held{target.Name, target.epoch})
	if err != nil {
		return err
	}
	// The last holder is written even without fencing: cluster.fenceCommand, once set, also covers
	// users held by then.
	then := []clientv3.Op{clientv3.OpPut(seat, target.Name,
		clientv3.WithLease(clientv3.LeaseID(target.Lease))), clientv3.OpPut(last, string(by))}
	answer, err := c.etcd.Txn(ctx).
		If(append(conditions, clientv3.Compare(clientv3.CreateRevision(last), "=", 0))...).
		Then(then...).Else(clientv3.OpGet(seat), clientv3.OpGet(last)).Commit()
	if err == nil {
		answer, err = c.lastly(ctx, user, target, answer, conditions, then)
	}
	if err != nil {
		return err
	}
	revision := answer.Header.Revision
	if !answer.Succeeded {
		kvs := answer.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 {
			return errHostGone
		}
		revision = kvs[0].ModRevision
	}
	return c.Reached(ctx, revision)
}

// Give gives up this host's seat of a user; Hold chooses the next host. For a deleted user, the
// last holder is forgotten, too, even where homes are local.
func (c *Cluster) Give(ctx context.Context, user string, isNoMore bool) error {
	s, ok := c.Seat(user)
	if !ok || s.Host != c.cfg.Host {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	seat := keyOf("seats", user)
	then := []clientv3.Op{clientv3.OpDelete(seat)}
	if isNoMore || !c.cfg.LocalHomes {
		then = append(then, clientv3.OpDelete(keyOf("held", user)))
	}
	if _, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(seat), "=", s.Epoch)).
		Then(then...).Commit(); err != nil {
		return unanswered(ctx, err)
	}
	// It is gone now, or was before. Until this is known, this host may go on as if it had the
	// seat.
	return c.until(ctx, func() bool { return c.seats[user] != s })
}

// SetDraining makes a host take no new users, or take them again. Only a live host can be drained.
func (c *Cluster) SetDraining(ctx context.Context, host string, draining bool) error {
	if _, lives := c.Node(host); !lives && draining {
		return errs.NotFound(
			"host %q is not in the cluster now: sandbox node list shows which hosts are", host)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	op := clientv3.OpDelete(keyOf("drains", host))
	if draining {
		op = clientv3.OpPut(keyOf("drains", host), "draining")
	}
	answer, err := c.etcd.Do(ctx, op)
	switch {
	case err != nil:
		return unanswered(ctx, err)
	case draining:
		return c.Reached(ctx, answer.Put().Header.Revision)
	case answer.Del().Deleted == 0:
		return nil
	}
	return c.Reached(ctx, answer.Del().Header.Revision)
}
