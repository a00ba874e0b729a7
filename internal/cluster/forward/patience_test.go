package forward

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster"
)

// oneSeat is an etcd in which a host has a user's seat, and in which nothing changes.
type oneSeat struct {
	clientv3.KV
	clientv3.Watcher
	user, host string
}

func (e oneSeat) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	seat := &mvccpb.KeyValue{Key: []byte(cluster.Prefix + "seats/" + e.user), Value: []byte(e.host), CreateRevision: 1, ModRevision: 1}
	return &clientv3.GetResponse{Header: &etcdserverpb.ResponseHeader{Revision: 1}, Kvs: []*mvccpb.KeyValue{seat}}, nil
}

func (e oneSeat) Watch(ctx context.Context, _ string, _ ...clientv3.OpOption) clientv3.WatchChan {
	ended := make(chan clientv3.WatchResponse)
	context.AfterFunc(ctx, func() { close(ended) })
	return ended
}

// A call of a user whose host is lost waits for the next one for as long as docs/guarantees.md and docs/cluster.md tell, and then
// has an answer.
func TestACallOfALostHostsUserIsAnsweredInTime(t *testing.T) {
	const told = 20 * time.Second
	synctest.Test(t, func(t *testing.T) {
		etcd := oneSeat{user: "alice", host: "h2"}
		c := cluster.New(&clientv3.Client{KV: etcd, Watcher: etcd}, cluster.Config{Host: "h1", Version: "test", Log: zerolog.Nop()})
		ctx, cancel := context.WithCancel(t.Context())
		first, ended := make(chan struct{}), make(chan struct{})
		go func() { defer close(ended); c.Run(ctx, first) }()
		defer func() { cancel(); <-ended }()
		<-first
		entry := Entry{Router: New(Config{Cluster: c, Log: zerolog.Nop()})}
		begun := time.Now()
		_, _, err := entry.Route(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/alice", nil), access.Caller{}, "alice", false)
		if took := time.Since(begun); took != told || !cerrdefs.IsUnavailable(err) || !strings.Contains(err.Error(), `"h2"`) {
			t.Errorf("after %s: %v", took, err)
		}
	})
}
