package rules

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// vandal changes the host's rules behind the table's back.
func (w *world) vandal(t testing.TB, what func(*nftables.Conn)) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(w.cfg.NetNS))
	must(t, err)
	what(conn)
	must(t, conn.Flush())
}

var vandalism = map[string]func(*nftables.Conn){
	"all flushed":   (*nftables.Conn).FlushRuleset,
	"inet deleted":  func(c *nftables.Conn) { c.DelTable(tableOf(nftables.TableFamilyINet)) },
	"arp deleted":   func(c *nftables.Conn) { c.DelTable(tableOf(nftables.TableFamilyARP)) },
	"rules flushed": func(c *nftables.Conn) { c.FlushTable(tableOf(nftables.TableFamilyBridge)) },
	"a rule added": func(c *nftables.Conn) {
		inet := tableOf(nftables.TableFamilyINet)
		c.InsertRule(&nftables.Rule{Table: inet, Chain: &nftables.Chain{Name: "leaving", Table: inet},
			Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}})
	},
	"a container added": func(c *nftables.Conn) {
		inet := tableOf(nftables.TableFamilyINet)
		c.SetAddElements(&nftables.Set{Name: memberSet, Table: inet},
			[]nftables.SetElement{{Key: memberKey(isolated, netip.MustParseAddr("10.77.1.99"))}})
	},
	"bindings emptied": func(c *nftables.Conn) {
		c.FlushSet(&nftables.Set{Name: boundSet, Table: tableOf(nftables.TableFamilyBridge)})
	},
}

func tableOf(family nftables.TableFamily) *nftables.Table {
	return &nftables.Table{Name: "daycare", Family: family}
}

func TestCheckSeesEveryChange(t *testing.T) {
	w := newWorld(t)
	w.apply(t)
	inTune(t, w.table)
	for name, change := range vandalism {
		w.vandal(t, change)
		if drift, err := w.table.Check(t.Context()); drift == "" || err != nil {
			t.Errorf("%s: %q, %v", name, drift, err)
		}
		w.apply(t)
		inTune(t, w.table)
	}
	other := &nftables.Table{Name: "another", Family: nftables.TableFamilyINet}
	w.vandal(t, func(c *nftables.Conn) { c.AddTable(other) })
	if drift, err := w.table.Check(t.Context()); drift != "" || err != nil {
		t.Errorf("another's table: %q, %v", drift, err)
	}
}

// keep runs Keep until the test ends.
func (w *world) keep(t testing.TB, interval time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.table.Keep(ctx, interval) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("keep ended with %v", err)
		}
	})
}

func TestKeepRepairs(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	s.keep(t, time.Hour) // the events alone
	for name, change := range vandalism {
		s.vandal(t, change)
		waittest.Until(t, "repair after "+name, func() bool {
			drift, err := s.table.Check(t.Context())
			return drift == "" && err == nil
		})
		if s.i1.tcp(private, otherPort) == nil || s.i1.tcp(public, otherPort) != nil {
			t.Errorf("after %s it is not as it was", name)
		}
	}
	waittest.Until(t, "the log tells of it", func() bool { return strings.Contains(s.log.String(), "have been repaired") })
}

// However often somebody takes the rules away, they come back, and at once when that has ended.
func TestKeepDoesNotTire(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	s.keep(t, time.Hour)
	for range 50 {
		s.vandal(t, (*nftables.Conn).FlushRuleset)
		waittest.Until(t, "repair", func() bool {
			drift, err := s.table.Check(t.Context())
			return drift == "" && err == nil
		})
	}
	if told := strings.Count(s.log.String(), "have been repaired"); told > 10 {
		t.Errorf("%d lines tell of 50 repairs", told)
	}
}

func TestKeepRepairsAtIntervals(t *testing.T) {
	w := newWorld(t)
	w.apply(t)
	w.keep(t, 30*time.Millisecond)
	// A bridge that was deleted and made again has not the option, and nftables tells of nothing.
	must(t, w.host.net.LinkDel(w.host.link(t, local)))
	must(t, w.host.net.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: local}}))
	waittest.Until(t, "repair of the bridge", func() bool { return strings.Contains(w.log.String(), "link-local") })
}

// While the rules are replaced again and again, nothing passes that they forbid, and what they allow does.
func TestReplacingLeavesNoGap(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	ctx, stop := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	defer func() { stop(); flood.Wait() }()
	hostMAC := s.gatewayMAC(t, s.i1)
	frames := [][]byte{}
	for i := range 64 {
		frames = append(frames, ethernet(hostMAC, s.i1.mac, 0x0800, datagram(s.i1.addr, private, otherPort, fmt.Sprint("out ", i))),
			ethernet(hostMAC, s.i1.mac, 0x0800, datagram(s.i2.addr, s.i1.gateway, 53, fmt.Sprint("in ", i))),
			ethernet(s.i2.mac, s.i1.mac, 0x0800, datagram(s.i1.addr, s.i2.addr, otherPort, fmt.Sprint("across ", i))))
	}
	neighbour := s.i2.tap(t, "eth0")
	kept, err := s.l1.dial("tcp", s.l1.gateway, 53)
	must(t, err)
	defer kept.Close()
	sent := 0
	flood.Go(func() {
		for ctx.Err() == nil {
			s.i1.send(t, "eth0", frames...)
			sent += len(frames)
		}
	})
	for i := range 200 {
		s.apply(t)
		if i%20 != 0 {
			continue
		}
		// The flood may push a datagram out, which is asked again. What TCP loses the kernel sends again, but not
		// to who was refused once.
		if !s.l1.udp(s.l1.gateway, 53, "allowed") || s.l1.tcp(s.l1.gateway, 53) != nil || !echo(kept, "allowed") {
			t.Fatal("what is allowed did not come through")
		}
	}
	stop()
	flood.Wait()
	if sent < 1000 {
		t.Errorf("only %d frames were sent", sent)
	}
	s.nothingLeft(t, s.i1)
	neighbour.fence(t, s.world.host, s.bridgeOf(s.i1))
	if got := append(neighbour.matching("across"), s.host.matching(`"in `)...); len(got) > 0 {
		t.Errorf("%d frames of %d passed: %q", len(got), sent, got[:min(len(got), 5)])
	}
	t.Logf("%d frames were sent while the rules were replaced 200 times", sent)
}

// When the service is gone its rules hold; the next one takes them over.
func TestRulesOutliveTheirMaker(t *testing.T) {
	s := newScene(t)
	s.apply(t)
	s.table.Close()
	if s.i1.tcp(private, otherPort) == nil || s.i1.tcp(public, 443) != nil {
		t.Error("the rules went with their maker")
	}
	if s.table.Remove(s.i1.addr) == nil {
		t.Error("a closed table took a change")
	}
	next, err := New(s.cfg)
	must(t, err)
	defer next.Close()
	if err := next.Add(s.i1.addr); err == nil {
		t.Error("a change before Apply")
	}
	if next.ForgetStrangers() == nil {
		t.Error("flows were forgotten before it was said whose they are")
	}
	must(t, next.Apply(t.Context(), State{}))
	inTune(t, next)
	must(t, RemoveTables(s.cfg.NetNS, s.cfg.Table))
	if err := s.i1.tcp(private, otherPort); err != nil {
		t.Errorf("removed, yet %v", err)
	}
}
