package guard

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
)

// slowEndpoint takes its time to say what it may reach, until told.
type slowEndpoint struct {
	*fakeEndpoint
	asked atomic.Int64
	say   chan struct{}
}

func (e *slowEndpoint) Allows(string) bool {
	e.asked.Add(1)
	<-e.say
	return true
}

// Of the requests of one user as many are worked on at a time as there are processors. The others wait for these, and
// another user's do not.
func TestRequestsAreWorkedOnInTurns(t *testing.T) {
	port := httpOrigin(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	slow := &slowEndpoint{
		fakeEndpoint: &fakeEndpoint{id: "many", user: "many", done: make(chan struct{})}, say: make(chan struct{}),
	}
	second := netip.MustParseAddr("127.0.0.2")
	r := newRig(t, 0, port, func(c *Config) {
		first := c.Endpoint
		c.Endpoint = func(a netip.Addr) (Endpoint, bool) {
			if a == second {
				return slow, true
			}
			return first(a)
		}
	})
	get := func(from netip.Addr) error {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", r.http)
		}}
		answer, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://allowed.example")
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		if said, err := io.ReadAll(answer.Body); err != nil || string(said) != "hello" {
			return fmt.Errorf("%q: %w", said, err)
		}
		return nil
	}
	most := runtime.GOMAXPROCS(0)
	many := 10 * most
	ended := make(chan error, many)
	for range many {
		go func() { ended <- get(second) }()
	}
	eventually(t, "not all have sent a request", func() bool {
		r.work.mu.Lock()
		defer r.work.mu.Unlock()
		c := r.work.users["many"]
		return c != nil && c.busy+len(c.waiting) == many && slow.asked.Load() == int64(most)
	})
	for range 10 {
		if err := get(loopback); err != nil {
			t.Errorf("another user: %v", err)
		}
	}
	if asked := slow.asked.Load(); asked != int64(most) {
		t.Errorf("%d are worked on, want %d", asked, most)
	}
	close(slow.say)
	for range many {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
