package forward

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/rs/zerolog"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster"
	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/ids"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// host is one of a cluster, with a handler for the calls that it answers.
type host struct {
	*Router
	t        *testing.T
	name     string
	lease    clientv3.LeaseID
	server   *http.Server
	entry    *httptest.Server // for callers
	fenced   atomic.Bool
	onStart  atomic.Pointer[func()] // called when it is asked whether it may start something
	released atomic.Int64
	failing  atomic.Bool // Release does
	refusing atomic.Bool // Take does
	busy     atomic.Bool
	doing    sync.Mutex
	done     []string // calls of Take, Release and answer, in their order
	caller   access.Caller
	answer   func(w http.ResponseWriter, req *http.Request, who access.Caller)
}

func open(t *testing.T, etcd *clientv3.Client, dir, name string) *host {
	t.Helper()
	if err := Issue(dir, name, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	certificates, err := ReadCertificates(filepath.Join(dir, AuthorityFile), filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.New(etcd, cluster.Config{Host: name, Address: listener.Addr().String(), Version: "test", Log: zerolog.Nop()})
	h := &host{t: t, name: name, caller: access.Caller{Name: "uid:0", Users: ids.Everyone()}}
	h.answer = func(w http.ResponseWriter, req *http.Request, who access.Caller) {
		h.did("answer")
		text, _ := io.ReadAll(req.Body)
		fmt.Fprintf(w, "%s %s %s %s %d", name, who.Name, who.Users, who.Token.Name, len(text))
	}
	h.Router = New(Config{Cluster: c, Certificates: certificates, Log: zerolog.Nop(), Local: local{h, c}})
	h.run(c, listener, certificates, etcd)
	return h
}

// local is what runs on a host.
type local struct {
	*host
	cluster *cluster.Cluster
}

func (l local) MayStart(user string) error {
	if f := l.onStart.Load(); f != nil {
		(*f)()
	}
	if l.fenced.Load() {
		return errFenced
	}
	return l.cluster.MayStart(user, int64(l.lease))
}

func (l local) Take(string) error {
	if l.refusing.Load() {
		l.did("refuse")
		return errors.New("the records cannot be read")
	}
	l.did("take")
	return nil
}

func (l local) Release(context.Context, string) error {
	if l.failing.Load() {
		l.did("fail")
		return errors.New("the engine is away")
	}
	l.did("release")
	l.released.Add(1)
	return nil
}

func (l local) Busy(string) bool { return l.busy.Load() }

func (h *host) run(c *cluster.Cluster, listener net.Listener, certificates Certificates, etcd *clientv3.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	first := make(chan struct{})
	running.Go(func() { c.Run(ctx, first) })
	<-first
	running.Go(func() { h.Router.Run(ctx) })
	lease, err := etcd.Grant(ctx, 60)
	if err != nil {
		h.t.Fatal(err)
	}
	h.lease = lease.ID
	if err := c.Join(ctx, int64(lease.ID)); err != nil {
		h.t.Fatal(err)
	}
	h.server = &http.Server{Handler: h.handler(Inbound{h.Router}, Caller)}
	running.Go(func() { _ = h.server.Serve(certificates.Listen(listener)) })
	h.entry = httptest.NewServer(h.handler(Entry{Router: h.Router}, func(*http.Request) (access.Caller, error) { return h.caller, nil }))
	h.t.Cleanup(func() { h.entry.CloseClientConnections(); _ = h.server.Close(); cancel(); running.Wait() })
}

func (h *host) did(what string) {
	h.doing.Lock()
	defer h.doing.Unlock()
	if n := len(h.done); n == 0 || h.done[n-1] != what { // as it is tried again and again
		h.done = append(h.done, what)
	}
}

// order is what the host did.
func (h *host) order() string {
	h.doing.Lock()
	defer h.doing.Unlock()
	return strings.Join(h.done, ", ")
}

type router interface {
	Route(http.ResponseWriter, *http.Request, access.Caller, string, bool) (context.Context, func(), error)
}

// handler does as the API does; the user is the first part of the path.
func (h *host) handler(r router, who func(*http.Request) (access.Caller, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == PingPath {
			return
		}
		caller, err := who(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		w.Header().Set("X-Request-Id", cmp.Or(req.Header.Get("X-Request-Id"), "r1"))
		ctx, done, err := r.Route(w, req, caller, strings.Trim(req.URL.Path, "/"), req.URL.RawQuery == "look")
		switch {
		case cerrdefs.IsUnavailable(err):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case done != nil:
			defer done()
			h.answer(w, req.WithContext(ctx), caller)
		}
	})
}

func (h *host) post(path string, body io.Reader) (int, string) {
	h.t.Helper()
	answer, err := http.Post(h.entry.URL+"/"+path, "text/plain", body)
	if err != nil {
		h.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if len(answer.Header.Values("X-Request-Id")) != 1 {
		h.t.Errorf("request ids %q", answer.Header.Values("X-Request-Id"))
	}
	return answer.StatusCode, strings.TrimSpace(string(text))
}

func two(t *testing.T) (*clientv3.Client, *host, *host) {
	t.Helper()
	etcd, _ := etcdtest.Start(t)
	one, other := twoOf(t, etcd)
	return etcd, one, other
}

func twoOf(t *testing.T, etcd *clientv3.Client) (*host, *host) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "certificates")
	if err := MakeAuthority(dir); err != nil {
		t.Fatal(err)
	}
	one, other := open(t, etcd, dir, "h1"), open(t, etcd, dir, "h2")
	waittest.Until(t, "they know each other", func() bool { return len(one.cfg.Cluster.Nodes()) == 2 && len(other.cfg.Cluster.Nodes()) == 2 })
	return one, other
}

func TestTheHolderAnswers(t *testing.T) {
	_, one, other := two(t)
	one.caller = access.Caller{Name: "of-alice", Users: scope(t, "alice", "carol"), Token: quota.Token{Name: "of-alice", Some: true}}
	if _, err := other.cfg.Cluster.Hold(t.Context(), "alice"); err != nil { // h2 in doubt
		t.Fatal(err)
	}
	for _, size := range []int{0, 10, smallBody + 1, 4 << 20} {
		want := fmt.Sprintf("h2 of-alice alice, carol of-alice %d", size)
		if status, text := one.post("alice", strings.NewReader(strings.Repeat("x", size))); status != http.StatusOK || text != want {
			t.Errorf("%d, %q, want %q", status, text, want)
		}
		// Without a length it is not known to be small.
		if status, text := one.post("alice", io.MultiReader(strings.NewReader(strings.Repeat("x", size)))); status != http.StatusOK || text != want {
			t.Errorf("%d, %q, want %q", status, text, want)
		}
	}
	if status, text := other.post("alice", nil); status != http.StatusOK || !strings.HasPrefix(text, "h2 uid:0 everyone") {
		t.Errorf("%d, %q", status, text)
	}
	if n := one.Counts().Forwarded; n != 8 {
		t.Errorf("%d were forwarded", n)
	}
	one.caller.Users = ids.Everyone()
	if status, text := one.post("alice?look", nil); status != http.StatusOK || !strings.HasPrefix(text, "h2 ") {
		t.Errorf("a look at who is held: %d, %q", status, text)
	}
	if status, text := one.post("madeup?look", nil); status != http.StatusOK || !strings.HasPrefix(text, "h1 ") {
		t.Errorf("a look at who is not: %d, %q", status, text)
	}
	if s, held := one.cfg.Cluster.Seat("madeup"); held {
		t.Errorf("it has made a seat: %+v", s)
	}
}

// While etcd is gone no host can take a user over, so nobody waits for that.
func TestWithoutEtcdCallersAreToldSoon(t *testing.T) {
	t.Parallel()
	etcd, _, signal := etcdtest.StartMembers(t, 1)
	one, other := twoOf(t, etcd)
	if _, err := other.cfg.Cluster.Hold(t.Context(), "alice"); err != nil { // h2 in doubt
		t.Fatal(err)
	}
	signal(0, syscall.SIGKILL)
	other.fenced.Store(true)
	begun := time.Now()
	status, text := one.post("alice", nil)
	if took := time.Since(begun); took > patience/2 || status != http.StatusServiceUnavailable || !strings.Contains(text, "see that a majority of its members runs") {
		t.Errorf("after %s: %d, %q", took, status, text)
	}
}

func scope(t *testing.T, names ...string) ids.Users {
	var users []ids.User
	for _, name := range names {
		id, err := ids.ParseUser(name)
		if err != nil {
			t.Fatal(err)
		}
		users = append(users, id)
	}
	return ids.OnlyUsers(users...)
}

func TestOnlyHostsCallHosts(t *testing.T) {
	_, one, other := two(t)
	strangers := filepath.Join(t.TempDir(), "strangers")
	if err := MakeAuthority(strangers); err != nil {
		t.Fatal(err)
	}
	if err := Issue(strangers, "h1", "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	stranger, err := ReadCertificates(filepath.Join(strangers, AuthorityFile), filepath.Join(strangers, "h1.crt"), filepath.Join(strangers, "h1.key"))
	if err != nil {
		t.Fatal(err)
	}
	node, _ := one.cfg.Cluster.Node("h2")
	call := func(encryption *tls.Config) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: encryption}}
		answer, err := client.Get("https://" + node.Address + PingPath)
		if err == nil {
			_ = answer.Body.Close()
		}
		return err
	}
	if err := call(one.cfg.Certificates.Client("h2")); err != nil {
		t.Errorf("a host: %v", err)
	}
	trusting := stranger.Client("h2")
	trusting.RootCAs = one.cfg.Certificates.authority
	for name, encryption := range map[string]*tls.Config{
		"a stranger": trusting, "nobody": {RootCAs: one.cfg.Certificates.authority, ServerName: "h2"}, "another name": one.cfg.Certificates.Client("h3"),
	} {
		if call(encryption) == nil {
			t.Errorf("%s called", name)
		}
	}
	// A caller of the open door cannot say that it is somebody.
	said := about{Caller: "root", User: "alice"}
	req, _ := http.NewRequest(http.MethodPost, other.entry.URL+"/alice", nil)
	if err := said.write(req.Header); err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); !strings.Contains(string(text), " uid:0 ") {
		t.Errorf("%s", text)
	}
	if _, err := Caller(req); !cerrdefs.IsPermissionDenied(err) {
		t.Errorf("without TLS: %v", err)
	}
}

// A user who moves while calls come is asked for where it is, and each call is answered once.
func TestCallsFollowTheirUser(t *testing.T) {
	_, one, other := two(t)
	var answered atomic.Int64
	for _, h := range []*host{one, other} {
		h.answer = func(w http.ResponseWriter, req *http.Request, _ access.Caller) {
			_, _ = io.Copy(io.Discard, req.Body)
			answered.Add(1)
		}
	}
	var calls sync.WaitGroup
	var asked atomic.Int64
	const callers, moves = 8, 5
	var answers [callers]atomic.Int64 // of each caller
	moved := func() bool { return one.released.Load()+other.released.Load() >= moves }
	for i := range callers {
		calls.Go(func() {
			h := []*host{one, other}[i%2]
			for !moved() && t.Context().Err() == nil {
				asked.Add(1)
				if status, text := h.post("alice", strings.NewReader("body")); status != http.StatusOK {
					t.Errorf("%d: %s", status, text)
				}
				answers[i].Add(1)
			}
		})
	}
	stop := make(chan struct{})
	var moving sync.WaitGroup
	moving.Go(func() {
		for {
			// A call may meet a move, but not one after another: those answer that the user keeps moving.
			for i := range callers {
				for before := answers[i].Load(); answers[i].Load() < before+2; {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
				}
			}
			for _, h := range []*host{one, other} {
				if s, held := h.cfg.Cluster.Seat("alice"); held && s.Host == h.name {
					if err := h.HandOver(t.Context(), "alice", true); err != nil {
						t.Error(err)
					}
					break
				}
			}
		}
	})
	calls.Wait()
	close(stop)
	moving.Wait()
	if n := answered.Load(); n != asked.Load() {
		t.Errorf("%d of %d", n, asked.Load())
	}
}

// A call that has waited in vain for its user to leave has begun nothing, and says so.
func TestACallDoesNotWaitForeverForAUserWhoLeaves(t *testing.T) {
	_, one, _ := two(t)
	seat, err := one.cfg.Cluster.Hold(t.Context(), "alice")
	if err != nil || seat.Host != one.name {
		t.Fatalf("%+v, %v", seat, err)
	}
	u := one.user("alice")
	one.mu.Lock()
	u.leaving = make(chan struct{})
	one.mu.Unlock()
	waited, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, done, again, err := one.enter(waited, t.Context(), seat); done != nil || again || !cerrdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "send it again") {
		t.Errorf("again %t, %v", again, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, _, err := one.enter(gone, gone, seat); !errors.Is(err, context.Canceled) {
		t.Errorf("of a caller who has gone: %v", err)
	}
}

// silent is an etcd that carries out so many transactions, and answers no more.
type silent struct {
	clientv3.KV
	left *atomic.Int64
}

func (s silent) Txn(ctx context.Context) clientv3.Txn {
	if s.left.Add(-1) < 0 {
		<-ctx.Done()
	}
	return s.KV.Txn(ctx)
}

// A call that waits for a lost host names it, also if its time ends while etcd is asked.
func TestACallThatWaitsForALostHostNamesIt(t *testing.T) {
	t.Parallel()
	etcd, endpoint := etcdtest.Start(t)
	one, other := twoOf(t, etcd)
	if seat, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || seat.Host != one.name {
		t.Fatalf("%+v, %v", seat, err)
	}
	asked, err := cluster.Dial([]string{endpoint}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	left := &atomic.Int64{}
	asked.KV = silent{asked.KV, left}
	c := cluster.New(asked, cluster.Config{Host: other.name, Version: "test", Fences: true, Log: zerolog.Nop()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, ended := make(chan struct{}), make(chan struct{})
	go func() { c.Run(ctx, first); close(ended) }()
	defer func() { cancel(); <-ended }()
	<-first
	if _, err := etcd.Revoke(t.Context(), one.lease); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the host is lost", func() bool { _, held := c.Seat("alice"); return !held && len(c.Nodes()) == 1 })
	left.Store(2)
	if _, err := c.Hold(t.Context(), "alice"); !errors.Is(err, cluster.ErrNotFenced) {
		t.Fatalf("%v", err)
	}
	left.Store(2)
	waiting, end := context.WithCancel(t.Context())
	defer end()
	go func() {
		waittest.Comes(func() bool { return left.Load() < 0 })
		end()
	}()
	req := httptest.NewRequest(http.MethodPost, "/alice", nil).WithContext(waiting)
	entry := Entry{Router: New(Config{Cluster: c, Local: local{other, c}, Log: zerolog.Nop()})}
	if _, _, err := entry.Route(httptest.NewRecorder(), req, other.caller, "alice", false); !errors.Is(err, cluster.ErrNotFenced) || !strings.Contains(err.Error(), `"h1"`) {
		t.Errorf("%v", err)
	}
	if left.Load() > -1 {
		t.Error("etcd was not asked once more")
	}
}

// A call that has looked up a seat which has moved by then is not let in, but looks again.
func TestACallLooksForASeatThatHasMoved(t *testing.T) {
	_, one, other := two(t)
	hold := func(h *host) cluster.Seat {
		t.Helper()
		seat, err := h.cfg.Cluster.Hold(t.Context(), "alice")
		if err != nil || seat.Host != h.name {
			t.Fatalf("%+v, %v", seat, err)
		}
		waittest.Until(t, "all know of the seat", func() bool { now, _ := one.cfg.Cluster.Seat("alice"); return now == seat })
		return seat
	}
	handOver := func(h *host) {
		t.Helper()
		if err := h.HandOver(t.Context(), "alice", true); err != nil {
			t.Fatal(err)
		}
		for _, h := range []*host{one, other} {
			waittest.Until(t, "all know that there is none", func() bool { _, held := h.cfg.Cluster.Seat("alice"); return !held })
		}
	}
	first := hold(one)
	looksAgain := func(what string) {
		t.Helper()
		if _, _, again, err := one.enter(t.Context(), t.Context(), first); !again || err != nil || one.Calls("") != 0 {
			t.Errorf("%s: again %t, %v, %d calls", what, again, err, one.Calls(""))
		}
	}
	handOver(one)
	looksAgain("nobody has the user")
	hold(other)
	looksAgain("another host has the user")
	handOver(other)
	hold(one)
	looksAgain("the user was away meanwhile")
}

func TestACallOfALostHostEndsAndSaysSo(t *testing.T) {
	etcd, one, other := two(t)
	if _, err := other.cfg.Cluster.Hold(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	began := make(chan struct{})
	other.answer = func(w http.ResponseWriter, req *http.Request, _ access.Caller) {
		close(began)
		<-req.Context().Done()
		http.Error(w, context.Cause(req.Context()).Error(), http.StatusServiceUnavailable)
	}
	failed := make(chan string, 1)
	go func() {
		status, text := one.post("alice", nil)
		failed <- fmt.Sprint(status, " ", text)
	}()
	<-began
	other.fenced.Store(true)
	if _, err := etcd.Revoke(t.Context(), other.lease); err != nil {
		t.Fatal(err)
	}
	if got := <-failed; !strings.HasPrefix(got, "503") || !strings.Contains(got, "not repeated") {
		t.Errorf("%s", got)
	}
	waittest.Until(t, "the next call is answered elsewhere", func() bool {
		status, text := one.post("alice", nil)
		return status == http.StatusOK && strings.HasPrefix(text, "h1 ")
	})
}

// What a fenced host does ends, and nothing is begun there.
func TestAFencedHostAnswersNothing(t *testing.T) {
	_, one, _ := two(t)
	if _, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	began := make(chan struct{})
	one.answer = func(w http.ResponseWriter, req *http.Request, _ access.Caller) {
		close(began)
		<-req.Context().Done()
		http.Error(w, context.Cause(req.Context()).Error(), http.StatusServiceUnavailable)
	}
	ended := make(chan string, 1)
	go func() {
		_, text := one.post("alice", nil)
		ended <- text
	}()
	<-began
	one.fenced.Store(true)
	one.Stop(t.Context())
	if n := one.Calls(""); n != 0 {
		t.Errorf("%d calls are left", n)
	}
	if got := <-ended; !strings.Contains(got, "was not retried") {
		t.Errorf("%s", got)
	}
	if status, text := one.post("alice", nil); status != http.StatusServiceUnavailable {
		t.Errorf("%d: %s", status, text)
	}
}

// A host that may do nothing now has begun nothing, so a call of a user whom it still holds waits for the one that takes over.
func TestACallOfAFencedHostWaitsForTheNext(t *testing.T) {
	etcd, one, other := two(t)
	if _, err := other.cfg.Cluster.Hold(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	if status, text := one.post("alice", nil); status != http.StatusOK || !strings.HasPrefix(text, "h2 ") {
		t.Fatalf("%d: %s", status, text)
	}
	asked := make(chan struct{})
	var once sync.Once
	other.fenced.Store(true)
	other.onStart.Store(new(func() { once.Do(func() { close(asked) }) }))
	answered := make(chan string, 1)
	go func() {
		status, text := one.post("alice", strings.NewReader("body"))
		answered <- fmt.Sprint(status, " ", text)
	}()
	<-asked
	if _, err := etcd.Revoke(t.Context(), other.lease); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; !strings.HasPrefix(got, "200 h1 ") {
		t.Error(got)
	}
}

// A connection that is upgraded goes both ways.
func TestUpgradedConnectionsAreForwarded(t *testing.T) {
	_, one, other := two(t)
	if _, err := other.cfg.Cluster.Hold(t.Context(), "alice"); err != nil {
		t.Fatal(err)
	}
	other.answer = func(w http.ResponseWriter, _ *http.Request, _ access.Caller) {
		w.Header().Set("Upgrade", "echo")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_ = buffered.Flush()
		line, _ := buffered.ReadString('\n')
		_, _ = io.WriteString(conn, "heard "+line)
	}
	conn, err := net.Dial("tcp", one.entry.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /alice HTTP/1.1\r\nHost: x\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
	text := bufio.NewReader(conn)
	for line := ""; line != "\r\n"; {
		if line, err = text.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(conn, "hello")
	if got, err := text.ReadString('\n'); got != "heard hello\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// What a host does not say about a caller is nothing that the caller may do.
func TestACallerIsNoMoreThanIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		`{"caller":"c"}`:                                "nobody",
		`{"caller":"c","users":null}`:                   "nobody",
		`{"caller":"c","users":[]}`:                     "nobody",
		`{"caller":"c","users":["alice"]}`:              "alice",
		`{"caller":"c","everyone":true,"users":[]}`:     "everyone",
		`{"everyone":true}`:                             "",
		`{"caller":"c","users":["../x"]}`:               "",
		`{"caller":"c","users":["alice"],"everyone":1}`: "",
	} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		req.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{}}}
		req.Header.Set(header, base64.StdEncoding.EncodeToString([]byte(text)))
		caller, err := Caller(req)
		if got := caller.Users.String(); err == nil && got != want || err != nil && want != "" {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

// What is asked of all hosts is asked as its caller, who is told which of them do not answer.
func TestAllHostsAreAsked(t *testing.T) {
	_, one, other := two(t)
	one.caller = access.Caller{Name: "of-alice", Users: scope(t, "alice"), Token: quota.Token{Name: "of-alice", Some: true}}
	var seen atomic.Pointer[access.Caller]
	other.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if who, err := Caller(req); err == nil && req.URL.Path != PingPath {
			seen.Store(&who)
		}
		fmt.Fprint(w, "list of "+req.URL.Query().Get("of"))
	})
	var answers map[string][]byte
	waittest.Until(t, "the other answers in time", func() bool {
		all, silent := Entry{Router: one.Router}.Gather(t.Context(), one.caller, "/list?of=h2")
		answers = all
		return len(silent) == 0
	})
	if string(answers["h2"]) != "list of h2" || len(answers) != 1 {
		t.Errorf("%q", answers)
	}
	if who := seen.Load(); who == nil || who.Name != "of-alice" || who.Users.String() != "alice" || who.Token.Name != "of-alice" {
		t.Errorf("%+v", who)
	}
	if answers, silent := (Inbound{one.Router}).Gather(t.Context(), one.caller, "/list"); len(answers)+len(silent) != 0 {
		t.Errorf("who is asked asks others: %q, %q", answers, silent)
	}
	_ = other.server.Close()
	if answers, silent := (Entry{Router: one.Router}).Gather(t.Context(), one.caller, "/list"); len(answers) != 0 || fmt.Sprint(silent) != "[h2]" {
		t.Errorf("%q, %q", answers, silent)
	}
}
