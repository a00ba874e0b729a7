package dnsfilter_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/daycare-run/sandbox/dnsfilter"
)

func TestTCP(t *testing.T) {
	l := newLab(t, func(c *dnsfilter.Config) { c.MaxConns, c.IdleTimeout = 16, 5*time.Second }, newFake(t, nil).addr)
	conn, err := l.client(filtered, "tcp").Dial(l.addr)
	must(t, err)
	defer conn.Close()
	for _, name := range []string{"example.org.", "other.test.", "WWW.example.org."} {
		must(t, conn.WriteMsg(new(dns.Msg).SetQuestion(name, dns.TypeA)))
		reply, err := conn.ReadMsg()
		must(t, err)
		if reply.Question[0].Name != name || (reply.Rcode == dns.RcodeSuccess) != (name != "other.test.") {
			t.Errorf("answered\n%s", reply)
		}
	}
	second, err := l.client(filtered, "tcp").Dial(l.addr)
	must(t, err)
	defer second.Close()
	must(t, second.WriteMsg(new(dns.Msg).SetQuestion("example.org.", dns.TypeA)))
	_, err = second.ReadMsg()
	must(t, err)
	third, err := l.client(filtered, "tcp").Dial(l.addr)
	must(t, err)
	defer third.Close()
	if _, err := third.Conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a third connection of one client: %v", err)
	}
	_, err = conn.Conn.Write([]byte{0xff, 0xff}) // more than a question can be
	must(t, err)
	for _, c := range []*dns.Conn{conn, second} { // and one that is idle
		if _, err := c.Conn.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
			t.Errorf("the connection is left: %v", err)
		}
	}
}

func TestShutdownLeavesNothing(t *testing.T) {
	upstream := newFake(t, nil)
	before := runtime.NumGoroutine()
	l := newLab(t, nil, upstream.addr)
	if err := l.Start(t.Context()); err == nil {
		t.Error("started twice")
	}
	if _, err := dnsfilter.Listen(t.Context(), netip.MustParseAddrPort(l.addr)); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second server at the same address: %v", err)
	}
	conn, err := l.client(filtered, "tcp").Dial(l.addr)
	must(t, err)
	defer conn.Close()
	must(t, conn.WriteMsg(new(dns.Msg).SetQuestion("example.org.", dns.TypeA)))
	_, err = conn.ReadMsg()
	must(t, err)
	must(t, l.Shutdown(t.Context()))
	must(t, l.Shutdown(t.Context()))
	if _, err := conn.ReadMsg(); err == nil {
		t.Error("a connection is left")
	}
	// What the upstream's server had going ends by itself.
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, before %d:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
	if _, err := l.Resolve(context.Background(), &dnsfilter.Client{}, "new.example.org"); err == nil {
		t.Error("resolved after the end")
	}
}

// TestBindsBeforeTheBridge binds an address that no interface has.
func TestBindsBeforeTheBridge(t *testing.T) {
	bound := bind(t, "192.0.2.53:0")
	newLab(t, func(c *dnsfilter.Config) { c.Sockets = append(c.Sockets, bound) }, newFake(t, nil).addr)
	if got := bound.TCP.Addr().(*net.TCPAddr).AddrPort(); got.Addr() != netip.MustParseAddr("192.0.2.53") || got.Port() == 0 {
		t.Errorf("bound %v", got)
	}
	if _, err := dnsfilter.Listen(t.Context(), netip.MustParseAddrPort("0.0.0.0:53")); err == nil || !strings.Contains(err.Error(), "no specific address") {
		t.Errorf("at any address: %v", err)
	}
}

func TestConfigFaults(t *testing.T) {
	_, err := dnsfilter.New(dnsfilter.Config{
		QueriesPerSecond: -1, Upstreams: []string{"dns.google", "tls://dns.google", "1.1.1.1:0", "https://1.1.1.1/dns-query"},
	})
	if err == nil {
		t.Fatal("there are none")
	}
	if _, none := dnsfilter.New(dnsfilter.Config{}); none == nil || !strings.Contains(none.Error(), "Upstreams is empty") {
		t.Errorf("without upstreams: %v", none)
	}
	for _, want := range []string{
		"Sockets is empty", "Client is missing", "QueriesPerSecond", "Admits is missing", `"dns.google"`, `"1.1.1.1:0"`, `"https://`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not among\n%s", want, err)
		}
	}
	if strings.Contains(err.Error(), "tls://dns.google") {
		t.Errorf("a good upstream is among\n%s", err)
	}
}

func TestShutdownGivesUpLookups(t *testing.T) {
	asked := make(chan struct{}, 1)
	upstream := newFake(t, func(dns.ResponseWriter, *dns.Msg) { asked <- struct{}{} })
	l := newLab(t, func(c *dnsfilter.Config) { c.Timeout, c.TryTimeout = time.Minute, time.Minute }, upstream.addr)
	resolved := make(chan error)
	go func() {
		_, err := l.Resolve(context.Background(), &dnsfilter.Client{}, "example.org")
		resolved <- err
	}()
	<-asked
	must(t, l.Shutdown(t.Context()))
	if err := <-resolved; err == nil {
		t.Error("resolved by nobody")
	}
}
