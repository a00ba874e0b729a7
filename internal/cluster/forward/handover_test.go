package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/cluster/etcdtest"
	"github.com/daycare-run/sandbox/internal/waittest"
)

// A user who is busy is given to another host when the call has ended, and at the end of the time that it has the call is ended.
func TestABusyUserIsHandedOver(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"the call ends": false, "its time is up": true} {
		t.Run(name, func(t *testing.T) {
			_, one, other := two(t)
			if s, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != one.name {
				t.Fatalf("%+v, %v", s, err)
			}
			began, let := make(chan struct{}), make(chan struct{})
			one.answer = func(w http.ResponseWriter, req *http.Request, _ access.Caller) {
				close(began)
				select {
				case <-let:
					fmt.Fprint(w, "done")
				case <-req.Context().Done():
					http.Error(w, context.Cause(req.Context()).Error(), http.StatusServiceUnavailable)
				}
			}
			answered := make(chan string, 1)
			go func() {
				status, text := one.post("alice", nil)
				answered <- fmt.Sprint(status, " ", text)
			}()
			<-began
			if err := other.cfg.Cluster.SetDraining(t.Context(), one.name, true); err != nil {
				t.Fatal(err)
			}
			waittest.Until(t, "it is known", func() bool { n, _ := one.cfg.Cluster.Node(one.name); return n.Draining })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			given, user := make(chan error, 1), one.user("alice")
			go func() { given <- one.HandOver(ctx, "alice", true) }()
			waittest.Until(t, "it is leaving", func() bool {
				one.mu.Lock()
				defer one.mu.Unlock()
				return one.users["alice"].leaving != nil
			})
			want := "200 done"
			if late {
				want = "503 the host is drained"
				cancel()
			} else {
				close(let)
			}
			if got := <-answered; !strings.HasPrefix(got, want) {
				t.Errorf("%s", got)
			}
			if err := <-given; err != nil || one.released.Load() != 1 {
				t.Errorf("%v, %d times released", err, one.released.Load())
			}
			user.taking.Lock()
			if user.tried { // whoever follows the seat's end would release it once more
				t.Error("something of the user is taken to be left")
			}
			user.taking.Unlock()
			if status, text := one.post("alice", nil); status != http.StatusOK || !strings.HasPrefix(text, "h2 ") {
				t.Errorf("the next call: %d, %s", status, text)
			}
		})
	}
}

// A user of whom something is left here is released until it succeeds, and before anything is taken over again.
func TestARestIsReleasedBeforeTheUserIsTakenOver(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*testing.T, *host){
		"the seat is lost": func(t *testing.T, h *host) {
			if err := h.cfg.Cluster.Give(t.Context(), "alice", false); err != nil {
				t.Fatal(err)
			}
			waittest.Until(t, "a release was tried", func() bool { return strings.HasSuffix(h.order(), "fail") })
		},
		"a handover fails": func(t *testing.T, h *host) {
			if err := h.HandOver(t.Context(), "alice", true); err == nil {
				t.Error("it was handed over")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, one, _ := two(t)
			hold := func() {
				t.Helper()
				if s, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != one.name {
					t.Fatalf("%+v, %v", s, err)
				}
			}
			hold()
			if status, text := one.post("alice", nil); status != http.StatusOK {
				t.Fatalf("%d: %s", status, text)
			}
			one.failing.Store(true)
			leave(t, one)
			hold()
			if status, text := one.post("alice", nil); status == http.StatusOK {
				t.Errorf("answered beside what is left: %s", text)
			}
			one.failing.Store(false)
			if status, text := one.post("alice", nil); status != http.StatusOK {
				t.Errorf("%d: %s", status, text)
			}
			if got := one.order(); got != "take, answer, fail, release, take, answer" {
				t.Error(got)
			}
		})
	}
}

// What cannot be released of a user who is elsewhere is tried again.
func TestAReleaseIsTriedAgain(t *testing.T) {
	_, one, other := two(t)
	if s, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != one.name {
		t.Fatalf("%+v, %v", s, err)
	}
	waittest.Until(t, "it is taken over", func() bool { return one.order() == "take" })
	one.failing.Store(true)
	if err := one.cfg.Cluster.Give(t.Context(), "alice", false); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "all know of it", func() bool { _, held := other.cfg.Cluster.Seat("alice"); return !held })
	if s, err := other.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != other.name {
		t.Fatalf("%+v, %v", s, err)
	}
	waittest.Until(t, "a release was tried", func() bool { return one.order() == "take, fail" })
	one.failing.Store(false)
	waittest.Until(t, "it is released", func() bool { return one.order() == "take, fail, release" })
	waittest.Until(t, "it is forgotten", func() bool { one.mu.Lock(); defer one.mu.Unlock(); return one.users["alice"] == nil })
}

// A call that was ended does not wait for a caller who reads nothing, whichever host the caller has asked.
func TestACallerWhoReadsNothingHoldsUpNoHandOver(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]bool{"asked here": false, "sent by another host": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, one, other := two(t)
			if s, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != one.name {
				t.Fatalf("%+v, %v", s, err)
			}
			began := make(chan struct{})
			one.answer = func(w http.ResponseWriter, _ *http.Request, _ access.Caller) {
				close(began)
				for piece := make([]byte, 1<<20); ; {
					if _, err := w.Write(piece); err != nil {
						return
					}
				}
			}
			asked := one
			if sent {
				asked = other
			}
			conn, err := net.Dial("tcp", asked.entry.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprint(conn, "GET /alice HTTP/1.1\r\nHost: localhost\r\n\r\n")
			<-began
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := one.HandOver(ended, "alice", true); err != nil {
				t.Error(err)
			}
		})
	}
}

// deadlines is an answer that remembers its deadline.
type deadlines struct {
	*httptest.ResponseRecorder
	set chan time.Time
}

func (d deadlines) SetWriteDeadline(t time.Time) error { d.set <- t; return nil }

// The bound of a call that was ended ends with the call, for there may be more on the connection.
func TestTheBoundOfACallEndsWithIt(t *testing.T) {
	_, one, _ := two(t)
	for name, ended := range map[string]bool{"alice": true, "bob": false} {
		w := deadlines{httptest.NewRecorder(), make(chan time.Time, 2)}
		if s, err := one.cfg.Cluster.Hold(t.Context(), name); err != nil || s.Host != one.name {
			t.Fatalf("%+v, %v", s, err)
		}
		ctx, done, err := Entry{Router: one.Router}.Route(w, httptest.NewRequest(http.MethodGet, "/", nil), one.caller, name, false)
		if err != nil {
			t.Fatal(err)
		}
		if ended {
			one.endCalls(name, errFenced)
			<-ctx.Done()
		}
		done()
		done()
		close(w.set)
		var set []bool
		for t := range w.set {
			set = append(set, !t.IsZero())
		}
		if got, want := fmt.Sprint(set), map[bool]string{true: "[true false]", false: "[]"}[ended]; got != want {
			t.Errorf("%s: deadlines %s, not %s", name, got, want)
		}
		if err := one.HandOver(t.Context(), name, true); err != nil {
			t.Fatal(err)
		}
	}
}

// What a failed take may have begun is released when the user goes elsewhere, and not before the next try.
func TestPartialTakeIsReleased(t *testing.T) {
	_, one, _ := two(t)
	one.refusing.Store(true)
	if s, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != one.name {
		t.Fatalf("%+v, %v", s, err)
	}
	for range 2 {
		if status, text := one.post("alice", nil); status == http.StatusOK {
			t.Errorf("answered: %s", text)
		}
	}
	if err := one.cfg.Cluster.Give(t.Context(), "alice", false); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "it is released", func() bool { return one.order() == "refuse, release" })
}

// lossy loses answers of an etcd: the first it did not carry out, the second it did.
type lossy struct {
	clientv3.KV
	lost *atomic.Int64
}

func (l lossy) Txn(ctx context.Context) clientv3.Txn { return lossyTxn{l.KV.Txn(ctx), l.lost} }

type lossyTxn struct {
	clientv3.Txn
	lost *atomic.Int64
}

func (l lossyTxn) If(cs ...clientv3.Cmp) clientv3.Txn   { return lossyTxn{l.Txn.If(cs...), l.lost} }
func (l lossyTxn) Then(ops ...clientv3.Op) clientv3.Txn { return lossyTxn{l.Txn.Then(ops...), l.lost} }

func (l lossyTxn) Commit() (*clientv3.TxnResponse, error) {
	n := l.lost.Add(1)
	if n == 1 {
		return nil, errors.New("lost")
	}
	answer, err := l.Txn.Commit()
	if n == 2 {
		return nil, errors.Join(err, errors.New("lost"))
	}
	return answer, err
}

// A seat that etcd may yet give up, although it has not answered, is not used any more.
func TestASeatIsGivenUpForGood(t *testing.T) {
	t.Parallel()
	etcd, _ := etcdtest.Start(t)
	lost := &atomic.Int64{}
	lost.Store(2) // nothing yet
	etcd.KV = lossy{etcd.KV, lost}
	one, other := twoOf(t, etcd)
	if s, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != one.name {
		t.Fatalf("%+v, %v", s, err)
	}
	if status, text := one.post("alice", nil); status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	lost.Store(0)
	if err := one.HandOver(t.Context(), "alice", true); err != nil {
		t.Error(err)
	}
	if got := one.order(); got != "take, answer, release" || lost.Load() < 2 {
		t.Errorf("%s after %d transactions", got, lost.Load())
	}
	waittest.Until(t, "the seat is gone", func() bool { _, held := other.cfg.Cluster.Seat("alice"); return !held })
}

// While a drain has time, who is busy when the turn comes stays, and nothing of that user ends. So does who is not known to be idle.
func TestBusyUsersStay(t *testing.T) {
	_, one, _ := two(t)
	stays := func(why string) {
		t.Helper()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := one.HandOver(ended, "alice", false); err != nil || one.released.Load() != 0 || !one.cfg.Cluster.Holds("alice") {
			t.Errorf("%s: %v, %d times released", why, err, one.released.Load())
		}
	}
	one.refusing.Store(true)
	if s, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != one.name {
		t.Fatalf("%+v, %v", s, err)
	}
	stays("it is not taken over")
	one.refusing.Store(false)

	ctx, done, err := Entry{Router: one.Router}.Route(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), one.caller, "alice", false)
	if err != nil {
		t.Fatal(err)
	}
	stays("a call runs")
	if ctx.Err() != nil {
		t.Errorf("the call was ended: %v", context.Cause(ctx))
	}
	one.busy.Store(true)
	done()
	stays("something runs")
	if status, text := one.post("alice", nil); status != http.StatusOK || !strings.HasPrefix(text, "h1 ") {
		t.Errorf("the next call: %d, %s", status, text)
	}
	one.busy.Store(false)
	if err := one.HandOver(t.Context(), "alice", false); err != nil || one.released.Load() != 1 || one.cfg.Cluster.Holds("alice") {
		t.Errorf("it is idle: %v, %d times released", err, one.released.Load())
	}
}

// A deleted user whom a call makes anew, while the seat is to be given up, stays.
func TestADeletedUserWhoIsBackStays(t *testing.T) {
	_, one, _ := two(t)
	if s, err := one.cfg.Cluster.Hold(t.Context(), "alice"); err != nil || s.Host != one.name {
		t.Fatalf("%+v, %v", s, err)
	}
	for _, back := range []bool{true, false} {
		if err := one.Drop(t.Context(), "alice", func() bool { return back }); err != nil {
			t.Fatal(err)
		}
		if got := one.cfg.Cluster.Holds("alice"); got != back {
			t.Errorf("back: %t, held: %t", back, got)
		}
	}
}

// A seat that has gone by the time that its user is to be taken over brings nothing here.
func TestNobodyIsTakenOverWithoutTheSeat(t *testing.T) {
	t.Parallel()
	_, one, _ := two(t)
	s, err := one.cfg.Cluster.Hold(t.Context(), "alice")
	if err != nil || s.Host != one.name {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := one.take("alice", one.user("alice"), s.Epoch+1); !errors.Is(err, errNoSeat) {
		t.Errorf("%v", err)
	}
}
