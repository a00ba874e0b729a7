package guard

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/budget"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// TestTheOriginKeepsThePort: many short connections to one address leave nothing with us, whoever says goodbye.
func TestTheOriginKeepsThePort(t *testing.T) {
	const each = 300
	port, origin := rawOrigin(t)
	go func() {
		for c := range origin {
			go func() {
				_, _ = c.Read(make([]byte, 4<<10))
				_, _ = c.Write([]byte{21, 3, 3, 0, 2, 1, 0})
				_, _ = c.Read(make([]byte, 4<<10)) // the client's goodbye
				time.Sleep(20 * time.Millisecond)  // the server is far away
				_ = c.Close()
			}()
		}
	}()
	shared := budgets()
	r := newRig(t, port, 0, twoUsers(shared))
	for range each {
		c := dialFrom(t, 1, r.tls)
		if !passes(c) {
			t.Fatal("a connection was refused")
		}
		_, _ = io.WriteString(c, "goodbye")
		_ = c.Close()
	}
	eventually(t, "connections stay", func() bool { return r.Open() == 0 })
	if n := timeWaits(t, port); n > each/20 {
		t.Errorf("%d of %d ports are kept", n, each)
	}
	if n := shared.Ports.Stats().Used; n > each/20 {
		t.Errorf("%d ports are counted", n)
	}
}

// HTTP leaves no port behind, whoever ends the connection.
func TestHTTPLeavesNoPorts(t *testing.T) {
	const each = 300
	port := httpOriginText(t, "hello")
	shared := budgets()
	r := newRig(t, 0, port, twoUsers(shared))
	for i := range each {
		c := dialFrom(t, 1, r.http)
		end := ""
		if i%2 == 0 {
			end = "Connection: close\r\n"
		}
		_, _ = fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\n%s\r\n", end)
		if end == "" {
			_, _ = io.ReadFull(c, make([]byte, 10))
		} else if got := readAll(c); !strings.HasSuffix(got, "hello") {
			t.Fatalf("%q", got)
		}
		_ = c.Close()
	}
	eventually(t, "connections stay", func() bool { return r.Open() == 0 })
	if n := timeWaits(t, port); n > each/20 {
		t.Errorf("%d of %d ports are kept", n, each)
	}
	eventually(t, "ports are counted that are free", func() bool { return shared.Ports.Stats().Used == 0 })
}

// TestPortsAreShared: a user that has used up its ports towards an address is told so, and another user connects.
func TestPortsAreShared(t *testing.T) {
	shared := budgets()
	shared.Ports = budget.NewPorts(20)
	port := alerting(t)
	r := newRig(t, port, port, twoUsers(shared))
	for range 5 {
		if !passes(dialFrom(t, 1, r.tls)) {
			t.Error("a connection was refused")
		}
		r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	}
	if opens(t, 1, r.tls) {
		t.Error("one user has more than a quarter of the ports")
	}
	r.decided(decisions.Limited, "allowed.example", reasonPorts)
	c := dialFrom(t, 1, r.http)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
	if got := readAll(c); !strings.HasPrefix(got, "HTTP/1.1 429") || !strings.Contains(got, reasonPorts) {
		t.Errorf("HTTP got %q", got)
	}
	r.decided(decisions.Limited, "allowed.example", reasonPorts)
	if !passes(dialFrom(t, 2, r.tls)) {
		t.Error("another user finds no port")
	}
}
