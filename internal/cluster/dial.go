package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/peer"
)

// Etcd is a client of etcd.
type Etcd = clientv3.Client

const (
	// silentLimit is how long a member of etcd may take to answer a question for which it needs no
	// other member.
	silentLimit = 2 * time.Second
	// lookEvery is how often a member, each in its turn, is asked such a question.
	lookEvery = silentLimit / 8
)

// Dial connects to etcd, which need not be up. Calls go in turn to those of its members that are
// connected. The connection to a silent member is closed: its process hangs, or packets do not
// reach it.
func Dial(endpoints []string, encryption *tls.Config) (*Etcd, error) {
	connect := func() (*members, *Etcd, error) {
		m := &members{connections: map[string]net.Conn{}}
		client, err := clientv3.New(clientv3.Config{
			Endpoints: endpoints, TLS: encryption, DialTimeout: silentLimit,
			DialOptions: []grpc.DialOption{grpc.WithContextDialer(m.dial)}, Logger: zap.NewNop(),
		})
		if err != nil {
			err = fmt.Errorf("cannot use cluster.etcd: %w", err)
		}
		return m, client, err
	}
	called, client, err := connect()
	if err != nil {
		return nil, err
	}
	// Checks have their own connections: on shared ones they would use up turns of calls, which
	// could then all go to one member.
	looked, looks, err := connect()
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	go func() {
		defer looks.Close()
		leaveSilent(client.Ctx(), looks, called, looked)
	}()
	return client, nil
}

// What matters in gRPC's own log also comes as an error. Its logger may be set only before anything
// else of gRPC is called.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

// members are the connections to etcd's members.
type members struct {
	mu          sync.Mutex
	connections map[string]net.Conn // the last one to each address
}

func (m *members) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.connections[conn.RemoteAddr().String()] = conn
	return conn, nil
}

// drop closes the connection to an address.
func (m *members) drop(address string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if conn := m.connections[address]; conn != nil {
		_ = conn.Close()
	}
}

// leaveSilent closes connections to members that do not answer, until ctx ends. A call that waits
// there fails, or, like a watch, continues at another member. gRPC sends nothing on a new
// connection before the other end has sent something.
//
// gRPC's own pings come every ten seconds at most, whatever is set.
func leaveSilent(ctx context.Context, looks *Etcd, all ...*members) {
	for kv := etcdserverpb.NewKVClient(looks.ActiveConnection()); ctx.Err() == nil; Wait(ctx,
		lookEvery) {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, silentLimit)
			defer cancel()
			var asked peer.Peer
			_, err := kv.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte("/"),
				Serializable: true}, grpc.Peer(&asked))
			if err == nil || ctx.Err() != context.DeadlineExceeded || asked.Addr == nil {
				return
			}
			for _, m := range all {
				m.drop(asked.Addr.String())
			}
		}()
	}
}
