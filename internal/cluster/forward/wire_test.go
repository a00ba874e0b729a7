package forward

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/waittest"
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
	waittest.Until(t, "both know", func() bool { now, held := away.cfg.Cluster.Seat("alice"); return held && now == seat })
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

// Hosts of this version and of earlier ones understand each other while one after another is upgraded, so what a host says about
// a call keeps its form: what may change is what is added.
func TestTheFormOfWhatHostsSay(t *testing.T) {
	said := about{
		Caller: "uid:0", Users: []string{"alice"}, User: "alice", Epoch: 7,
		Token: quota.Token{Name: "t", Some: true, Own: quota.Bounds{Commands: 3}},
	}
	header, req := http.Header{}, httptest.NewRequest(http.MethodPost, "/", nil)
	if err := said.write(header); err != nil {
		t.Fatal(err)
	}
	req.Header = header
	if got, err := read(req); err != nil || !reflect.DeepEqual(got, said) {
		t.Errorf("what is said is read as %+v, %v", got, err)
	}
	const earlier = `{"caller":"uid:0","everyone":false,"users":["alice"],"token":{"Name":"t","Some":true,` +
		`"Own":{"Containers":0,"ColdStarts":0,"Commands":3,"DetachedExecs":0,"Processes":0,"ExposedPorts":0,"Sandboxes":0,"Calls":0,"RequestsPerSecond":0}},` +
		`"user":"alice","epoch":7}`
	text, err := base64.StdEncoding.DecodeString(header.Get("X-Daycare-Call"))
	if err != nil || string(text) != earlier {
		t.Errorf("%s, %v, want %s", text, err, earlier)
	}
}
