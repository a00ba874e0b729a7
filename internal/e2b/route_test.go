package e2b

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/internal/access"
	"github.com/daycare-run/sandbox/internal/quota"
	"github.com/daycare-run/sandbox/internal/workload/persistent"
)

// asked answers all calls here, and remembers which sandboxes they were about.
type asked []string

func (a *asked) Route(_ http.ResponseWriter, req *http.Request, _ access.Caller, id string, _ bool) (context.Context, func(), error) {
	*a = append(*a, id)
	return req.Context(), func() {}, nil
}

func (*asked) Await(context.Context, string) error { return nil }

func (*asked) Names(context.Context) (map[string]bool, error) { return nil, nil }

func (*asked) Sender(*http.Request) (access.Caller, string, error) { return access.Caller{}, "", nil }

// sender has all calls be sent on by one caller, about one sandbox.
type sender struct {
	*asked
	caller access.Caller
	id     string
}

func (s sender) Sender(*http.Request) (access.Caller, string, error) { return s.caller, s.id, nil }

// learning is asked for hosts that learn of a sandbox only when it is waited for.
type learning struct {
	asked
	learn func(id string)
	names []string // that it learns of when it is asked for all
}

func (l *learning) Names(context.Context) (map[string]bool, error) {
	for _, id := range l.names {
		l.learn(id)
	}
	return nil, nil
}

func (l *learning) Await(_ context.Context, id string) error {
	l.learn(id)
	return nil
}

// A caller may have any header dropped on the way between hosts, by naming it in Connection: what a call that a host sends is
// about, the host says, and no call goes on without that being looked at.
func TestHostsNameTheSandbox(t *testing.T) {
	var sent http.Handler
	var router asked
	id := persistent.NewID()
	newLab(t, func(c *Config) {
		anne, _ := c.Callers.Tokens.Named("anne")
		c.Cluster = &Cluster{Entry: &asked{}, Sent: sender{&router, anne, id}}
		sent = New(*c).Sent
	})
	for _, call := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/v2/sandboxes", 201}, {"GET", "/sandboxes/" + id, 200}, {"POST", "/filesystem.Filesystem/Stat", 200},
		// What is signed is done as who is signed, whom no header names.
		{"GET", "/files?path=missing&signature=v1_x", 404}, {"GET", "/files?path=missing", 403},
		{"DELETE", "/sandboxes/" + id, 204},
	} {
		router = nil
		req := httptest.NewRequest(call.method, call.path, strings.NewReader("{}"))
		req.Header.Set("Content-Type", "application/json")
		if strings.HasPrefix(call.path, "/files?") {
			req.SetBasicAuth("root", "")
		}
		w := httptest.NewRecorder()
		sent.ServeHTTP(w, req)
		if len(router) != 1 || router[0] != id || w.Code != call.status {
			t.Errorf("%s %s: %d %s, routed as %q", call.method, call.path, w.Code, w.Body, router)
		}
	}
}

// A sandbox gets its host once the call that creates it is known to be in order. The host reads the same body.
func TestACreateThatIsNotInOrderIsRoutedNowhere(t *testing.T) {
	var router asked
	l := newLab(t, func(c *Config) { c.Cluster = &Cluster{Entry: &router, Sent: &asked{}} })
	for body, status := range map[string]int{
		"no JSON": 400, `{"unknown":1}`: 400, `{"timeout":-1}`: 400, `{"templateID":"none"}`: 404, strings.Repeat(" ", 1<<20) + "{}": 413,
		"": 201, `{"timeout":60,"metadata":{"a":"b"}}`: 201,
	} {
		router = nil
		got, text, _ := l.call(annesKey, "POST", "/v2/sandboxes", body)
		if routed := len(router) == 1; got != status || routed != (status == 201) {
			t.Errorf("%.40q: %d %s, routed as %q", body, got, text, router)
		}
	}
	list := l.sandboxes.All()
	if !slices.ContainsFunc(list, func(i persistent.Info) bool { return i.Metadata["a"] == "b" }) {
		t.Errorf("what was asked for is not there: %+v", list)
	}
}

// A sandbox of which another host has just recorded something is found by its ports, and by what its token has signed.
func TestNewRecordsOfOtherHostsAreFound(t *testing.T) {
	var l portLab
	called, signed := persistent.NewID(), persistent.NewID()
	learn := func(id string) {
		if _, err := l.sandboxes.Create(t.Context(), quota.Token{Name: "anne"}, persistent.Create{ID: id}); err != nil {
			t.Error(err)
		}
	}
	var s server
	l = newPortLab(t, `{}`, dumps, func(c *Config) {
		c.Cluster = &Cluster{Entry: &learning{learn: learn, names: []string{signed}}, Sent: &asked{}}
		s.cfg = *c
	})
	if res, text := l.ask(l.port+"-"+called+"."+testDomain, "/", nil); res.StatusCode != http.StatusOK {
		t.Errorf("at a port: %d %s", res.StatusCode, text)
	}
	anne, _ := l.tokens.Named("anne")
	query := url.Values{"path": {"missing"}, "signature": {signature("missing:read::"+s.accessToken(anne, signed), "")}}
	if status, text, _ := l.send("GET", "/files?"+query.Encode(), "", nil); status != http.StatusNotFound {
		t.Errorf("with a signature: %d %s", status, text)
	}
}
