package forward

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/daycare-run/sandbox/internal/access"
)

// A call of E2B's wire comes to the holder as it came to the host that sends it, and is told from one of the API. What a user's
// program answers is no word of a host's.
func TestAnotherWire(t *testing.T) {
	_, one, other := two(t)
	var got *http.Request
	misdirected := 0
	for _, h := range []*host{one, other} {
		h.answer = func(w http.ResponseWriter, req *http.Request, _ access.Caller) {
			if arrived, wire := Received(req); wire == E2B {
				got = arrived
			}
			misdirected++
			w.WriteHeader(http.StatusMisdirectedRequest)
		}
	}
	seat, err := one.cfg.Cluster.Hold(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	away := one
	if seat.Host == one.name {
		away = other
	}
	until(t, "both know", func() bool { now, held := away.cfg.Cluster.Seat("alice"); return held && now == seat })
	door := httptest.NewServer(away.handler(Entry{Router: away.Router, Wire: E2B}, func(*http.Request) (access.Caller, error) { return away.caller, nil }))
	defer door.Close()
	req, err := http.NewRequest(http.MethodPost, door.URL+"/alice?a=1;b", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "8080-alice.example.org"
	req.Header.Set("Authorization", "Basic dXNlcjo=")
	req.Header.Set("X-Forwarded-For", "192.0.2.1")
	req.Header.Set(header, "forged")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusMisdirectedRequest || misdirected != 1 {
		t.Errorf("%d after %d calls", answer.StatusCode, misdirected)
	}
	if got == nil || got.Host != req.Host || got.Header.Get("Authorization") == "" || got.Header.Get("X-Forwarded-For") != "192.0.2.1" || got.URL.RawQuery != "a=1;b" || got.RemoteAddr[:10] != "127.0.0.1:" {
		t.Errorf("%+v", got)
	}
}

// What hosts ask each other is at paths that callers may ask for, too, of a program in a sandbox: that is for the program.
func TestCallersDoNotAskHosts(t *testing.T) {
	for _, path := range []string{PingPath, lookPath} {
		req := httptest.NewRequest(http.MethodGet, path, nil)
		if !ServeHosts(httptest.NewRecorder(), req, t.TempDir(), func() map[string]string { return nil }) {
			t.Errorf("%s of a host is not answered", path)
		}
		if err := (about{Caller: "anne", Wire: E2B}).write(req.Header); err != nil {
			t.Fatal(err)
		}
		if ServeHosts(httptest.NewRecorder(), req, t.TempDir(), func() map[string]string { return nil }) {
			t.Errorf("%s of a caller is answered as a host's", path)
		}
	}
}

// A call with another epoch than the seat's is sent back before it has begun anything, and is tried again once.
func TestAnEpochThatHasPassed(t *testing.T) {
	_, one, other := two(t)
	seat, err := other.cfg.Cluster.Hold(t.Context(), "alice")
	if err != nil || seat.Host != other.name {
		t.Fatalf("%+v, %v", seat, err)
	}
	begun := 0
	other.answer = func(http.ResponseWriter, *http.Request, access.Caller) { begun++ }
	node, _ := one.cfg.Cluster.Node(other.name)
	host := &http.Client{Transport: &http.Transport{TLSClientConfig: one.cfg.Certificates.Client(other.name)}}
	for _, c := range []struct {
		epoch         int64
		status, begun int
	}{{seat.Epoch - 1, http.StatusMisdirectedRequest, 0}, {seat.Epoch, http.StatusOK, 1}} {
		req, err := http.NewRequest(http.MethodPost, "https://"+node.Address+"/alice", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if err := (about{Caller: "root", Everyone: true, User: "alice", Epoch: c.epoch}).write(req.Header); err != nil {
			t.Fatal(err)
		}
		answer, err := host.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != c.status || begun != c.begun || (answer.Header.Get(movedHeader) != "") != (c.begun == 0) {
			t.Errorf("epoch %d of %d: %d, %d begun", c.epoch, seat.Epoch, answer.StatusCode, begun)
		}
	}
	asked := 0
	other.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != PingPath {
			asked++
			w.Header().Set(movedHeader, "true")
			w.WriteHeader(http.StatusMisdirectedRequest)
		}
	})
	if status, text := one.post("alice", nil); status != http.StatusServiceUnavailable || asked != 2 {
		t.Errorf("%d: %s, and it was sent %d times", status, text, asked)
	}
}
