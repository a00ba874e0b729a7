package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/fence"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/process"
	"github.com/daycare-run/sandbox/internal/version"
)

// member is this host as a member of a cluster. It is nil on a single host.
type member struct {
	d       *daemon
	cluster *cluster.Cluster
	fence   *fence.Member
	router  *forward.Router
	certs   forward.Certificates
	cfg     config.Cluster
	sealing []byte // the key that all hosts share

	mu     sync.Mutex
	wanted map[string]map[string]bool // by user: processes that some host has to run

	joining sync.Mutex // held while this host joins the cluster, before mu
}

// dialEtcd connects to etcd as configured.
func dialEtcd(cfg config.Cluster) (*cluster.Etcd, forward.Certificates, error) {
	certs, err := forward.ReadCertificates(cfg.CAFile, cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return nil, certs, err
	}
	etcd, err := cluster.Dial(cfg.Etcd, certs.Client(""))
	return etcd, certs, err
}

// openCluster makes this host a member of a cluster if one is configured.
func (d *daemon) openCluster(ctx context.Context, cfg config.Config) error {
	if !cfg.Cluster.On() {
		return nil
	}
	sealing, err := readSealingKey(cfg.Cluster.SealingKeyFile)
	if err != nil {
		return err
	}
	etcd, certs, err := dialEtcd(cfg.Cluster)
	if err != nil {
		return err
	}
	d.onClose(func() { _ = etcd.Close() })
	info, err := d.docker.Info(ctx)
	if err != nil {
		return fmt.Errorf("cannot ask Docker how it manages control groups, which the fence needs to know: %w", err)
	}
	group := fenceGroup(cfg)
	if d.cgroupParent = string(group); info.CgroupDriver == "systemd" {
		d.cgroupParent = strings.TrimPrefix(d.cgroupParent, "/")
	}
	m := &member{d: d, certs: certs, cfg: cfg.Cluster, sealing: sealing, wanted: map[string]map[string]bool{}}
	m.cluster = cluster.New(etcd, cluster.Config{Host: cfg.Cluster.Name, Address: cfg.Cluster.Listen, Version: version.String(),
		Instance: d.host.instance, Fences: len(cfg.Cluster.FenceCommand) > 0, LocalHomes: cfg.Cluster.Homes == "local", Events: d.events, Log: d.log})
	m.fence = fence.NewMember(fenceFiles(cfg), group, d.log)
	m.router = forward.New(forward.Config{
		Cluster: m.cluster, MayStart: m.mayStart, Certificates: certs, Log: d.log,
		Take: m.take, Release: m.release, Busy: m.busy,
	})
	d.member = m
	return nil
}

func readSealingKey(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil || len(text) != 32 {
		return nil, fmt.Errorf("cannot use cluster.sealingKeyFile: want 32 bytes, the same on all hosts: %d, %v", len(text), err)
	}
	return text, nil
}

// take takes over a user's processes and lasting sandboxes.
func (m *member) take(user string) error {
	if err := m.d.runner.DropUnread(user); err != nil {
		return err
	}
	if err := m.d.processes.Adopt(user); err != nil {
		return err
	}
	return m.adoptLasting(user)
}

// release ends everything of a user's that runs on this host.
func (m *member) release(ctx context.Context, user string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := m.d.processes.Release(ctx, user); err != nil {
		return err
	}
	if err := m.d.lasting.Release(ctx, user); err != nil {
		return err
	}
	return m.d.executor.Leave(ctx, user)
}

// busy reports whether a user has something on this host that no other host would start again.
func (m *member) busy(user string) bool { return m.d.processes.Busy(user) || m.d.lasting.Busy(user) }

// mayStart returns nil while this host has a lease and the user's seat. Pooled containers belong to no user yet and
// need no seat.
func (m *member) mayStart(user string) error {
	if err := m.fence.MayStart(); err != nil || (dockerexec.Spec{User: user}).IsPooled() {
		return err
	}
	return m.cluster.MayStart(user, m.fence.Record().Lease)
}

// Write writes a sandbox's record for all hosts.
func (m *member) Write(user, id string, text []byte, revision int64) (int64, error) {
	return m.cluster.Write(m.cluster.Leased(), user, cluster.Change{Kind: "sandboxes", Name: id, Value: text, If: &revision})
}

// processRecords are the process records that all hosts share.
type processRecords struct{ *cluster.Cluster }

var _ process.Shared = processRecords{}

func (p processRecords) Write(user string, values map[string][]byte) error {
	var changes []cluster.Change
	for _, name := range slices.Sorted(maps.Keys(values)) {
		changes = append(changes, cluster.Change{Kind: "processes", Name: user + "/" + name, Value: values[name]})
	}
	_, err := p.Cluster.Write(p.Leased(), user, changes...)
	return err
}

func (p processRecords) Read(user, name string) ([]byte, error) {
	return p.Cluster.Read(p.Leased(), "processes", user+"/"+name)
}

func (p processRecords) List(user string) (map[string][]byte, error) {
	all, err := p.Cluster.List(p.Leased(), "processes", user+"/")
	own := map[string][]byte{}
	for name, value := range all {
		own[strings.TrimPrefix(name, user+"/")] = value
	}
	return own, err
}

// toldOfProcess remembers which users have processes that some host has to run.
func (m *member) toldOfProcess(name string, text []byte, _ int64) {
	user, id, _ := strings.Cut(name, "/")
	m.mu.Lock()
	defer m.mu.Unlock()
	if process.Wanted(id, text) {
		if m.wanted[user] == nil {
			m.wanted[user] = map[string]bool{}
		}
		m.wanted[user][id] = true
	} else if delete(m.wanted[user], id); len(m.wanted[user]) == 0 {
		delete(m.wanted, user)
	}
}

// start takes part in the cluster until stop is called.
func (m *member) start(ctx context.Context) (stop func()) {
	m.cluster.Keep("sandboxes", m.d.resolver.Apply)
	m.cluster.Keep("processes", m.toldOfProcess)
	m.cluster.Keep(forward.Lasting, m.toldOfLasting)
	first := make(chan struct{})
	ends := []func(){inBackground(ctx, func(ctx context.Context) { m.cluster.Run(ctx, first) })}
	select {
	case <-first:
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		m.d.log.Warn().Msg("etcd does not answer yet: nothing is known of users until it does")
	}
	ends = append(ends,
		inBackground(ctx, m.router.Run), inBackground(ctx, m.tendUsers), inBackground(ctx, m.watchEngine), inBackground(ctx, m.fenceLost),
		inBackground(ctx, m.followFence))
	return func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
}

// drainLimit is how long busy users may stay on a host that is being drained.
const drainLimit = 10 * time.Minute

const (
	// tendEvery is the pause between looks at the users.
	tendEvery = 500 * time.Millisecond
	// givenAtOnce is how many users are given up at a time.
	givenAtOnce = 8
)

// tendUsers finds a host for each user whose processes have to run. Beside that it gives users up, for which their calls have to
// end.
func (m *member) tendUsers(ctx context.Context) {
	defer inBackground(ctx, m.dropEnded)()
	defer inBackground(ctx, m.handOver)()
	for ; ctx.Err() == nil; cluster.Wait(ctx, tendEvery) {
		for _, user := range m.unheld() {
			if ctx.Err() == nil {
				_, _ = m.cluster.Hold(ctx, user) // the next round tries again
			}
		}
	}
}

// unheld returns users and sandboxes that have something to run or whose deadline has passed, and whose seat no host
// holds.
func (m *member) unheld() []string {
	m.mu.Lock()
	wanted := slices.Collect(maps.Keys(m.wanted))
	m.mu.Unlock()
	wanted = append(wanted, m.d.lasting.Due()...)
	return slices.DeleteFunc(wanted, func(user string) bool {
		_, held := m.cluster.Seat(user)
		return held
	})
}

// handOver hands over this host's users while it is drained, until ctx ends.
func (m *member) handOver(ctx context.Context) {
	var drained time.Time
	var turns errgroup.Group
	turns.SetLimit(givenAtOnce)
	defer func() { _ = turns.Wait() }()
	for ; ctx.Err() == nil; cluster.Wait(ctx, tendEvery) {
		own, _ := m.cluster.Node(m.cluster.Host())
		if !own.Draining || m.fence.Left() <= 0 || m.cfg.Homes == "local" {
			drained = time.Time{}
			continue
		}
		if drained.IsZero() {
			drained = time.Now()
		}
		m.drain(ctx, &turns, time.Since(drained) > drainLimit)
	}
}

// drain hands over the users who are idle when their turn comes, or all users. It returns when the last turn has come.
func (m *member) drain(ctx context.Context, turns *errgroup.Group, all bool) {
	if !slices.ContainsFunc(m.cluster.Nodes(), func(n cluster.Node) bool { return !n.Draining }) {
		return // no host would take them
	}
	for _, seat := range m.cluster.Seated() {
		turns.Go(func() error {
			if own, _ := m.cluster.Node(m.cluster.Host()); !own.Draining { // any more
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			if err := m.router.HandOver(ctx, seat.User, all); err != nil {
				m.d.log.Warn().Err(err).Str("user", seat.User).Msg("cannot give a user to another host yet")
			}
			return nil
		})
	}
}

// openNodes listens for requests from the other hosts.
func (m *member) openNodes(cfg config.Config, handler func(api.Authenticator, []string, api.Router) http.Handler, e2b http.Handler) (endpoint, error) {
	listener, err := net.Listen("tcp", cfg.Cluster.Listen)
	if err != nil {
		return endpoint{}, fmt.Errorf("cannot listen on cluster.listen: %w", err)
	}
	settings := func() map[string]string { return sameSettings(*m.d.cfg.Load(), m.sealing) }
	calls := handler(forward.Caller, nil, forward.Inbound{Router: m.router})
	server := newServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if forward.ServeHosts(w, req, cfg.UsersDir, settings) {
			return
		}
		if req, wire := forward.Received(req); wire == forward.E2B {
			e2b.ServeHTTP(w, req)
			return
		}
		calls.ServeHTTP(w, req)
	}), m.d.log)
	// Besides the caller's own headers they carry, in base64, the caller on whose behalf they act.
	server.MaxHeaderBytes = 2*maxHeader + base64.StdEncoding.EncodedLen(access.MaxTokensFile)
	return endpoint{m.certs.Listen(listener), server}, nil
}

// List returns the hosts of the cluster for callers.
func (m *member) List() (list []types.Node) {
	for _, n := range m.cluster.Nodes() {
		list = append(list, types.Node{Name: n.Name, Address: n.Address, Version: n.Version, Draining: n.Draining, Users: n.Users})
	}
	for _, name := range m.cluster.Lost() {
		n, _ := m.cluster.Node(name)
		list = append(list, types.Node{Name: name, Draining: n.Draining, Users: n.Users, Lost: true})
	}
	slices.SortFunc(list, func(a, b types.Node) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// SetDraining starts or stops draining a host.
func (m *member) SetDraining(ctx context.Context, node string, draining bool) error {
	return m.cluster.SetDraining(ctx, node, draining)
}

// Remove removes a lost host from the cluster.
func (m *member) Remove(ctx context.Context, node string) error { return m.cluster.Remove(ctx, node) }
