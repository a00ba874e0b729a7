package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/daycare-run/sandbox/api"
	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/cluster/fence"
	"github.com/daycare-run/sandbox/internal/cluster/forward"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/lasting"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/sandbox"
	"github.com/daycare-run/sandbox/internal/sandboxtest"
)

// A call that another host sends names all users of its token, beside all headers that the caller may send.
func TestHostsSayForManyUsers(t *testing.T) {
	dir := t.TempDir()
	if err := forward.MakeAuthority(dir); err != nil {
		t.Fatal(err)
	}
	if err := forward.Issue(dir, "h1", "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	certs, err := forward.ReadCertificates(filepath.Join(dir, forward.AuthorityFile), filepath.Join(dir, "h1.crt"), filepath.Join(dir, "h1.key"))
	if err != nil {
		t.Fatal(err)
	}
	m := &member{d: &daemon{log: zerolog.Nop()}, certs: certs}
	opened, err := m.openNodes(config.Config{Cluster: config.Cluster{Listen: "127.0.0.1:0"}}, func(api.Authenticator, []string, api.Router) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			caller, err := forward.Caller(req)
			fmt.Fprint(w, len(caller.Users.IDs()), err)
		})
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = opened.server.Serve(opened.listener) }()
	defer opened.server.Close()
	transport := &http.Transport{TLSClientConfig: certs.Client("h1")}
	defer transport.CloseIdleConnections()
	var names []string
	for size := 0; size < access.MaxTokensFile-100; size += len(names[len(names)-1]) + 1 {
		names = append(names, fmt.Sprintf(`"user-%07d"`, len(names)))
	}
	req, err := http.NewRequest(http.MethodGet, "https://"+opened.listener.Addr().String()+"/v1/sandboxes", nil)
	if err != nil {
		t.Fatal(err)
	}
	said := `{"from":"h2","caller":"of-many","users":[` + strings.Join(names, ",") + `]}`
	req.Header.Set("X-Daycare-Call", base64.StdEncoding.EncodeToString([]byte(said)))
	req.Header.Set("Cookie", strings.Repeat("c", maxHeader-1000))
	answer, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if want := fmt.Sprint(len(names), nil); err != nil || string(text) != want {
		t.Errorf("it was answered %s, %.100s, not %s: %v", answer.Status, text, want, err)
	}
}

// newMember is the only host of a cluster. Whom it gives up is released by release.
func newMember(t *testing.T, release func(user string)) (_ *member, etcd *cluster.Etcd) {
	t.Helper()
	etcd, _ = etcdtest.Start(t)
	m := &member{d: &daemon{log: zerolog.Nop()}, wanted: map[string]map[string]bool{}}
	m.cluster = cluster.New(etcd, cluster.Config{Host: "h1", Address: "127.0.0.1:1", Version: "test", Log: zerolog.Nop()})
	m.fence = fence.NewMember(fence.Files{Base: filepath.Join(t.TempDir(), "api")}, "", zerolog.Nop())
	m.router = forward.New(forward.Config{
		Cluster: m.cluster, MayStart: func(string) error { return nil }, Take: func(string) error { return nil },
		Release: func(_ context.Context, user string) error { release(user); return nil },
		Busy:    func(string) bool { return false }, Log: zerolog.Nop(),
	})
	var err error
	m.d.service = sandboxtest.New(t, sandboxtest.Options{})
	if m.d.lasting, err = lasting.Open(lasting.Config{Shared: lastingRecords{m}, Service: m.d.service, Log: zerolog.Nop()}); err != nil {
		t.Fatal(err)
	}
	first := make(chan struct{})
	t.Cleanup(inBackground(context.Background(), func(ctx context.Context) { m.cluster.Run(ctx, first) }))
	<-first
	lease, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.cluster.Join(t.Context(), int64(lease.ID)); err != nil {
		t.Fatal(err)
	}
	return m, etcd
}

// A sandbox that is given up slowly holds up neither the end of another one nor the start of what has to run.
func TestWhoIsGivenUpSlowlyHoldsUpNobody(t *testing.T) {
	let, slow := make(chan struct{}), make(chan struct{}, 1)
	m, _ := newMember(t, func(user string) {
		if user == "slow" {
			slow <- struct{}{}
			<-let
		}
	})
	for _, id := range []string{"slow", "ended"} {
		if _, err := m.cluster.Hold(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	m.d.lasting.Abandon("slow")
	defer inBackground(t.Context(), m.tendUsers)()
	defer close(let)
	<-slow
	m.d.lasting.Abandon("ended")
	m.mu.Lock()
	m.wanted["bob"] = map[string]bool{"p": true}
	m.mu.Unlock()
	for end := time.Now().Add(30 * time.Second); m.cluster.Holds("ended") || !m.cluster.Holds("bob"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("bob is held: %t, what has ended is: %t", m.cluster.Holds("bob"), m.cluster.Holds("ended"))
		}
	}
}

// Who was idle when a drain began stays if that is no longer so when the turn comes, or if the host is not drained any more.
func TestADrainLooksWhenTheTurnComes(t *testing.T) {
	for name, all := range map[string]bool{"a call has begun": false, "the drain is called off": true} {
		t.Run(name, func(t *testing.T) {
			let, began := make(chan struct{}), make(chan string, givenAtOnce+1)
			m, etcd := newMember(t, func(user string) {
				began <- user
				<-let
			})
			call := func(user string) (context.Context, func()) {
				t.Helper()
				ctx, done, err := forward.Entry{Router: m.router}.Route(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), access.Caller{}, user, false)
				if err != nil {
					t.Fatal(err)
				}
				return ctx, done
			}
			waiting := map[string]bool{}
			for i := range givenAtOnce + 1 {
				user := fmt.Sprint("user-", i)
				_, done := call(user)
				done()
				waiting[user] = true
			}
			joinOther(t, m, etcd)
			drain := func(is bool) {
				if err := m.SetDraining(t.Context(), "h1", is); err != nil {
					t.Fatal(err)
				}
			}
			drain(true)
			var turns errgroup.Group
			turns.SetLimit(givenAtOnce)
			drained := make(chan struct{})
			go func() {
				m.drain(t.Context(), &turns, all)
				_ = turns.Wait()
				close(drained)
			}()
			for range givenAtOnce {
				delete(waiting, <-began)
			}
			if all {
				drain(false)
			}
			for user := range waiting {
				ctx, done := call(user)
				close(let)
				select {
				case <-drained:
				case <-ctx.Done():
					t.Errorf("the call was ended: %v", context.Cause(ctx))
				}
				done()
				<-drained
				if len(began) > 0 || !m.cluster.Holds(user) {
					t.Errorf("%s was given up", user)
				}
			}
			if n := len(m.cluster.Seated()); n != 1 {
				t.Errorf("%d users are left", n)
			}
		})
	}
}

// joinOther has another host join, and m know of it.
func joinOther(t *testing.T, m *member, etcd *cluster.Etcd) {
	t.Helper()
	lease, err := etcd.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	other := cluster.New(etcd, cluster.Config{Host: "h2", Address: "127.0.0.1:2", Version: "test", Log: zerolog.Nop()})
	t.Cleanup(inBackground(context.Background(), func(ctx context.Context) { other.Run(ctx, nil) }))
	if err := other.Join(t.Context(), int64(lease.ID)); err != nil {
		t.Fatal(err)
	}
	if text, err := m.cluster.Read(t.Context(), "nodes", "h2"); err != nil || text == nil { // it is known here then
		t.Fatalf("%s, %v", text, err)
	}
}

// Who may not remove a user cannot have the user's seat given up.
func TestTheSeatOfAnothersUserStays(t *testing.T) {
	m, _ := newMember(t, func(string) {})
	alice, bob := userID(t, "alice"), userID(t, "bob")
	for _, tt := range []struct {
		caller *sandbox.Service
		given  int
	}{{m.d.service.Scoped(ids.OnlyUsers(alice), quota.Token{}), 0}, {m.d.service, 1}} {
		if _, err := m.d.removeUser(t.Context(), tt.caller, bob, true); !cerrdefs.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		given := 0
		m.d.lasting.Leave(func(func() error) { given++ }, nil)
		if given != tt.given {
			t.Errorf("%d seats are given up, not %d", given, tt.given)
		}
	}
}

func userID(t *testing.T, name string) ids.User {
	t.Helper()
	id, err := ids.ParseUser(name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
