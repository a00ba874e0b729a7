package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	cerrdefs "github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/errs"
)

// Change writes a record, or removes it if Value is nil.
type Change struct {
	Kind, Name string
	Value      []byte
	// If is the revision that the record must have, 0 if it must not exist; nil if that does not
	// matter.
	If *int64
}

// Write changes records of a user, all or none. It fails unless this host holds the user when etcd
// commits the change. It returns the revision of the change.
func (c *Cluster) Write(ctx context.Context, user string, changes ...Change) (int64, error) {
	s, ok := c.Seat(user)
	if !ok || s.Host != c.cfg.Host {
		return 0, fmt.Errorf("another host holds user %q by now: ask again: %w", user,
			cerrdefs.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	conditions := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(keyOf("seats", user)),
		"=", s.Epoch)}
	var ops []clientv3.Op
	for _, change := range changes {
		key := keyOf(change.Kind, change.Name)
		if change.If != nil {
			conditions = append(conditions,
				clientv3.Compare(clientv3.ModRevision(key), "=", *change.If))
		}
		if change.Value == nil {
			ops = append(ops, clientv3.OpDelete(key))
		} else {
			ops = append(ops, clientv3.OpPut(key, string(change.Value)))
		}
	}
	answer, err := c.etcd.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		return 0, unanswered(ctx, err)
	}
	if !answer.Succeeded {
		return 0, errs.Conflict(
			"it was changed through another host at the same time: look at it and ask again")
	}
	return answer.Header.Revision, nil
}

// Read returns a record as it is in etcd, nil for none. When it returns, everything up to the
// record's revision is known here.
func (c *Cluster) Read(ctx context.Context, kind, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	answer, err := c.etcd.Get(ctx, keyOf(kind, name))
	if err != nil {
		return nil, unanswered(ctx, err)
	}
	if len(answer.Kvs) == 0 {
		return nil, nil
	}
	return answer.Kvs[0].Value, c.Reached(ctx, answer.Kvs[0].ModRevision)
}

// List returns the records of a kind whose names begin with a prefix.
func (c *Cluster) List(ctx context.Context, kind, prefix string) (map[string][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	answer, err := c.etcd.Get(ctx, keyOf(kind, prefix), clientv3.WithPrefix())
	if err != nil {
		return nil, unanswered(ctx, err)
	}
	all := map[string][]byte{}
	for _, kv := range answer.Kvs {
		all[string(kv.Key)[len(keyOf(kind, "")):]] = kv.Value
	}
	return all, nil
}

// Names returns the names of the records of a kind in etcd. When it returns, these records are
// known here.
func (c *Cluster) Names(ctx context.Context, kind string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	answer, err := c.etcd.Get(ctx, keyOf(kind, ""), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, unanswered(ctx, err)
	}
	names, latest := map[string]bool{}, int64(0)
	for _, kv := range answer.Kvs {
		names[string(kv.Key)[len(keyOf(kind, "")):]] = true
		latest = max(latest, kv.ModRevision)
	}
	return names, c.Reached(ctx, latest)
}

// Hoards reports whether etcd keeps what was before the last so many changes, as one that never
// compacts its history.
func (c *Cluster) Hoards(ctx context.Context, changes int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	now, err := c.etcd.Get(ctx, Prefix, clientv3.WithCountOnly())
	if err != nil || now.Header.Revision <= changes {
		return false, err
	}
	_, err = c.etcd.Get(ctx, Prefix, clientv3.WithCountOnly(),
		clientv3.WithRev(now.Header.Revision-changes))
	if errors.Is(err, rpctypes.ErrCompacted) {
		return false, nil
	}
	return err == nil, err
}

// Owner assigns one of the host's numeric ids to a user's home, unless it belongs to a user whose
// home is not known to be gone.
func (c *Cluster) Owner(ctx context.Context, id uint32, user string,
	isGone func(other string) bool) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	key := keyOf("owners", fmt.Sprint(id))
	answer, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, user)).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return false, unanswered(ctx, err)
	}
	if answer.Succeeded {
		return true, nil
	}
	has := answer.Responses[0].GetResponseRange().Kvs[0]
	if string(has.Value) == user || !isGone(string(has.Value)) {
		return string(has.Value) == user, nil
	}
	answer, err = c.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", has.ModRevision)).
		Then(clientv3.OpPut(key, user)).Commit()
	if err != nil {
		return false, unanswered(ctx, err)
	}
	return answer.Succeeded, nil
}

// ReadNodes returns the live hosts. It reads them from etcd and does not need Run.
func (c *Cluster) ReadNodes(ctx context.Context) (list []Node, _ error) {
	all, err := c.List(ctx, "nodes", "")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		n := Node{Name: name}
		if json.Unmarshal(all[name], &n) == nil {
			list = append(list, n)
		}
	}
	return list, err
}
