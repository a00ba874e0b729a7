package gateway

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What is sent to where nothing listens is refused and told, whose it was and where to; what is served is not.
func TestRefusedIsTold(t *testing.T) {
	g := newGate(t, good())
	must(t, g.Untold)
	greet(t, g.TLS)
	greet(t, g.Ports[22])
	answerAll(t, g.DNSOverUDP)
	one, two := g.newBox(t, 11), g.newBox(t, 12)
	told := make(chan Refused, 1000)
	go g.ReadRefused(func(r Refused) { told <- r })
	for _, at := range []string{"203.0.113.9:443", "203.0.113.9:22"} {
		c, err := one.dial("tcp", at)
		must(t, err)
		must(t, c.Close())
	}
	one.ask("10.77.1.1:53")
	var want, got []Refused
	for _, at := range []string{"203.0.113.9:25", "203.0.113.9:53", "10.77.1.12:8080", "10.77.1.1:22222"} {
		if _, err := one.dial("tcp", at); err == nil {
			t.Errorf("%s was reached", at)
		}
		want = append(want, Refused{one.addr, netip.MustParseAddrPort(at), false})
	}
	for _, at := range []string{"203.0.113.9:443", "203.0.113.9:53"} {
		two.ask(at)
		want = append(want, Refused{two.addr, netip.MustParseAddrPort(at), true})
	}
	for range want {
		select {
		case r := <-told:
			got = append(got, r)
		case <-time.After(10 * time.Second):
			t.Fatalf("told only %v", got)
		}
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b Refused) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	begun := time.Now()
	must(t, one.in(func() error {
		c, err := net.Dial("udp", "203.0.113.9:4000")
		if err != nil {
			return err
		}
		defer c.Close()
		for range 5000 {
			_, _ = c.Write([]byte("flood"))
		}
		return nil
	}))
	two.ask("203.0.113.9:9")
	for n := 0; ; n++ {
		select {
		case r := <-told:
			if r.From == two.addr {
				if most := refusedBurst + 1 + int(refusedRate*time.Since(begun).Seconds()); n > most {
					t.Errorf("%d were told of a flood, of at most %d", n, most)
				}
				return
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a flood kept the other's from being told")
		}
	}
}

// What is refused is told before its sender knows.
func TestRefusedIsToldInTime(t *testing.T) {
	g := newGate(t, good())
	must(t, g.Untold)
	one := g.newBox(t, 11)
	for port := 1000; port < 1020; port++ {
		to := netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), uint16(port))
		_, _ = one.dial("tcp", to.String())
		var told []Refused
		g.PassRefused(func(r Refused) { told = append(told, r) })
		if len(told) != 1 || told[0].To != to {
			t.Errorf("%v: %v", to, told)
		}
	}
}

// UDP is refused by a few messages a second, however often a container asks: the rest is dropped.
func TestRefusalsOfUDPAreFew(t *testing.T) {
	const asked, atOnce = 100, 6 // that is what the kernel sends to an address at once, and then one a second
	g := newGate(t, good())
	one := g.newBox(t, 11)
	var asks []net.Conn
	begun := time.Now()
	must(t, one.in(func() error {
		for range asked {
			c, err := net.Dial("udp", "203.0.113.9:53")
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = c.Close() })
			if _, err := c.Write([]byte("question")); err != nil {
				return err
			}
			asks = append(asks, c)
		}
		return nil
	}))
	most := atOnce + 1 + int(time.Since(begun).Seconds())
	end, refused := time.Now().Add(20*time.Second), 0
	for i, c := range asks {
		if i == 1 { // the first was told, and what is told at all comes soon after
			end = time.Now().Add(2 * time.Second)
		}
		must(t, c.SetReadDeadline(end))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, syscall.ECONNREFUSED) {
			refused++
		}
	}
	if refused == 0 || refused > most {
		t.Errorf("%d of %d were refused, want some and at most %d", refused, asked, most)
	}
}

// A service that starts does not take what the one before did not read for the next container's.
func TestRestartForgetsWhatWasRefused(t *testing.T) {
	g := newGate(t, good())
	must(t, g.Untold)
	one := g.newBox(t, 11)
	_, _ = one.dial("tcp", "203.0.113.9:25")
	must(t, g.Restart(map[netip.Addr]bool{one.addr: true}))
	_, _ = one.dial("tcp", "203.0.113.9:26")
	told := make(chan Refused, 10)
	go g.ReadRefused(func(r Refused) { told <- r })
	if r := <-told; r.To.Port() != 26 {
		t.Errorf("%v", r)
	}
}

// A gateway that an earlier version made does without.
func TestAGatewayThatCannotTell(t *testing.T) {
	s := &server{why: net.ErrClosed}
	if _, _, err := s.do(request{Do: doRefused}); err == nil {
		t.Error("a socket that is not there")
	}
}

func FuzzRefused(f *testing.F) {
	f.Add([]byte{}, byte(0))
	f.Fuzz(func(_ *testing.T, b []byte, size byte) {
		if len(b) > 4 {
			binary.NativeEndian.PutUint32(b, uint32(size))
		}
		eachRefused(b, func(Refused) {})
	})
}
