package guard

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// established is a connection that has been let through: its client's end and its origin's.
func established(r *rig, origin <-chan *net.TCPConn) (*net.TCPConn, *net.TCPConn) {
	r.t.Helper()
	c := dial(r.t, r.tls)
	first := records(message(named("allowed.example")), maxRecord)
	_, _ = c.Write(first)
	o := take(r.t, origin)
	if _, err := io.ReadFull(o, make([]byte, len(first))); err != nil {
		r.t.Fatal(err)
	}
	_, _ = o.Write([]byte{21, 3, 3, 0, 2, 1, 0})
	if _, err := io.ReadFull(c, make([]byte, 7)); err != nil {
		r.t.Fatal(err)
	}
	return c, o
}

func TestUnknownClientsAreCutOff(t *testing.T) {
	r, v := newVisited(t, func(c *Config) {
		fakes(c).client = func(netip.Addr) (Client, bool) { return nil, false }
	})
	for _, addr := range []string{r.tls, r.http} {
		if got := knock(t, addr); got != "" {
			t.Errorf("answered %q", got)
		}
	}
	r.undecided()
	if v.String() != "" {
		t.Errorf("the origin saw %s", v)
	}
}

func TestLimits(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, port, func(c *Config) {
		c.Limits.Connections, c.Limits.Undecided, c.Limits.HTTPConnections = 4, 2, 1
	})
	cutOff := func(addr string) {
		t.Helper()
		if got := knock(t, addr); got != "" {
			t.Errorf("answered %q", got)
		}
		r.decided(decisions.Limited, "", reasonTooMany)
	}
	open := func(n int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d are not open", n), func() bool { return r.Open() == n })
	}
	silent := []*net.TCPConn{dial(t, r.tls), dial(t, r.http)}
	open(2)
	cutOff(r.tls) // two are undecided
	_ = silent[0].Close()
	open(1)
	cutOff(r.http) // one is HTTP
	_ = silent[1].Close()
	open(0)
	for range 4 {
		established(r, origin)
		r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	}
	cutOff(r.tls)
	if limited, open := r.counted(decisions.Limited), r.Open(); limited != 3 || open != 4 {
		t.Errorf("%d were limited, %d are open", limited, open)
	}
}

func TestRevocationEndsEverything(t *testing.T) {
	port, origin := rawOrigin(t)
	resolving := make(chan struct{})
	r := newRig(t, port, port, func(c *Config) {
		fakes(c).resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			if name == "also.example" {
				close(resolving)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return []netip.Addr{loopback}, nil
		}
	})
	c, o := established(r, origin)
	halfway := dial(t, r.tls) // its name is being resolved
	_, _ = halfway.Write(records(message(named("also.example")), maxRecord))
	<-resolving
	silent := dial(t, r.tls)
	kept := dial(t, r.http) // it waits for its next request, and so does its origin
	_, _ = io.WriteString(kept, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	idle := take(t, origin)
	if _, err := http.ReadRequest(bufio.NewReader(idle)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(idle, "HTTP/1.1 204 No Content\r\n\r\n")
	if status, _ := answer(t, bufio.NewReader(kept), "GET"); status != 204 {
		t.Fatal(status)
	}
	eventually(t, "four are not open", func() bool { return r.Open() == 4 })

	close(r.client.done)
	for what, end := range map[string]net.Conn{"client": c, "origin": o, "resolving": halfway, "silent": silent, "kept": kept, "idle origin": idle} {
		if _, err := end.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	eventually(t, "a connection stays", func() bool { return r.Open() == 0 })
	if got := knock(t, r.tls); got != "" {
		t.Errorf("a revoked client was answered %q", got)
	}
}

// TestRecheck: when fewer names are allowed, what goes on to the others ends, and nothing else.
func TestRecheck(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, port, nil)
	c, o := established(r, origin) // to allowed.example
	ask := func(name string) (client, server net.Conn) {
		client = dial(t, r.http)
		_, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: "+name+"\r\n\r\n")
		server = take(t, origin)
		if _, err := http.ReadRequest(bufio.NewReader(server)); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	gone, goneOrigin := ask("allowed.example")
	stays, staysOrigin := ask("also.example")
	idle, idleOrigin := ask("allowed.example") // has its answer before
	_, _ = io.WriteString(idleOrigin, "HTTP/1.1 204 No Content\r\n\r\n")
	answers := bufio.NewReader(idle)
	if status, _ := answer(t, answers, "GET"); status != 204 {
		t.Fatal(status)
	}
	eventually(t, "the answered request is still under way", func() bool {
		r.clients.mu.Lock()
		defer r.clients.mu.Unlock()
		for _, state := range r.clients.active {
			for f := range state.flows {
				if f.name.Load() == nil {
					return true
				}
			}
		}
		return false
	})
	r.client.now.Store(&[]string{"also.example"})
	r.Recheck(r.client)
	for what, end := range map[string]net.Conn{"client": c, "origin": o, "plain client": gone, "plain origin": goneOrigin} {
		if _, err := end.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, _ = io.WriteString(staysOrigin, "HTTP/1.1 204 No Content\r\n\r\n")
	if status, _ := answer(t, bufio.NewReader(stays), "GET"); status != 204 {
		t.Errorf("what is still allowed: %d", status)
	}
	_, _ = io.WriteString(idle, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
	if status, _ := answer(t, answers, "GET"); status != 403 {
		t.Errorf("the next request of a kept connection: %d", status)
	}
}

// TestDirect: a connection to an address that is allowed by itself is not looked into, whichever port it is to.
func TestDirect(t *testing.T) {
	relayed := make(chan *net.TCPConn, 1)
	r := newRig(t, 1, 2, func(c *Config) {
		fakes(c).direct = func(addr netip.Addr) bool { return addr == loopback }
		fakes(c).relay = func(conn *net.TCPConn, port uint16) {
			if port != 1 && port != 2 {
				t.Errorf("port %d", port)
			}
			relayed <- conn
		}
	})
	for _, address := range []string{r.tls, r.http} {
		c := dial(t, address)
		far := <-relayed
		for _, end := range [][2]net.Conn{{c, far}, {far, c}} {
			_, _ = io.WriteString(end[0], "as it is")
			_ = end[0].(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(end[1]); string(got) != "as it is" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}
		_ = far.Close()
	}
	if n := r.Open(); n != 0 {
		t.Errorf("%d of them are the guard's", n)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestAnotherClientTakesTheAddress: what ends with one client does not touch the next.
func TestAnotherClientTakesTheAddress(t *testing.T) {
	o := newTLSOrigin(t, echo, nil)
	before := &fakeClient{id: "before", names: []string{"allowed.example"}, done: make(chan struct{})}
	after := &fakeClient{id: "after", names: []string{"denied.example"}, done: make(chan struct{})}
	now := make(chan Client, 1)
	r := newRig(t, o.port, 0, func(c *Config) {
		fakes(c).client = func(netip.Addr) (Client, bool) {
			client := <-now
			return client, true
		}
	})
	now <- before
	old, err := hands(r, &tls.Config{ServerName: "allowed.example"})
	if err != nil {
		t.Fatal(err)
	}
	close(before.done)
	now <- after
	fresh, err := hands(r, &tls.Config{ServerName: "denied.example"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the old connection: %v", err)
	}
	_, _ = fresh.Write([]byte("x"))
	if _, err := fresh.Read(make([]byte, 1)); err != nil {
		t.Errorf("the new connection: %v", err)
	}
	now <- after
	if _, err := hands(r, &tls.Config{ServerName: "allowed.example"}); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("the old name: %v", err)
	}
}

// A client is watched from its first connection until it is revoked, also while it has none.
func TestClientsAreWatchedUntilTheyAreRevoked(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, nil)
	for range 3 {
		c, o := established(r, origin)
		_ = c.Close()
		_ = o.Close()
		eventually(t, "a connection stays", func() bool { return r.Open() == 0 })
	}
	c, o := established(r, origin)
	close(r.client.done)
	for what, end := range map[string]net.Conn{"client": c, "origin": o} {
		if _, err := end.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	eventually(t, "the client is not forgotten", func() bool {
		r.clients.mu.Lock()
		defer r.clients.mu.Unlock()
		return len(r.clients.active) == 0
	})
}

func TestShutdownLeavesNothing(t *testing.T) {
	port, origin := rawOrigin(t)
	plain, _ := rawOrigin(t)
	before := runtime.NumGoroutine()
	r := newRig(t, port, plain, nil)
	for range 20 {
		established(r, origin)
		_, _ = io.WriteString(dial(t, r.http), "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n")
		dial(t, r.tls)
	}
	eventually(t, "60 are not open", func() bool { return r.Open() == 60 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "goroutines stay", func() bool { return runtime.NumGoroutine() <= before })
	if _, err := net.Dial("tcp", r.tls); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after Shutdown: %v", err)
	}
	if err := r.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// TestShutdownIsNoVerdict: a client that waits for a name then is told nothing of it, nor is the observer.
func TestShutdownIsNoVerdict(t *testing.T) {
	resolving := make(chan bool, 10)
	r := newRig(t, 1, 0, func(c *Config) {
		fakes(c).resolve = func(ctx context.Context, _ string) ([]netip.Addr, error) {
			resolving <- true
			<-ctx.Done()
			return []netip.Addr{loopback}, nil
		}
	})
	for range cap(resolving) {
		_, _ = dial(t, r.tls).Write(records(message(named("allowed.example")), maxRecord))
	}
	for range cap(resolving) {
		<-resolving
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := r.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	r.undecided()
}

func TestFaultsAreAllNamed(t *testing.T) {
	_, err := New(Config{Limits: Limits{Connections: -1, HTTPIdle: -time.Second}})
	for _, want := range []string{"TLS", "HTTP", "Network", "positive"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
