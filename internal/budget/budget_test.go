package budget

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/daycare-run/sandbox/internal/waittest"
)

func TestPortsComeBackAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, other := netip.MustParseAddrPort("192.0.2.1:443"), netip.MustParseAddrPort("192.0.2.2:443")
		p := NewPorts(400)
		all := func(user string, to netip.AddrPort) (n int) {
			for p.Take(user, to) {
				n++
			}
			return n
		}
		if got := all("a", to); got != 100 {
			t.Errorf("%d ports, want 100", got)
		}
		if got := all("a", other); got != 100 {
			t.Errorf("%d ports towards another address, want 100", got)
		}
		if got := all("b", to); got != 75 {
			t.Errorf("%d ports of another user, want 75", got)
		}
		for i := range 100 {
			p.Give("a", to, i%2 == 0)
		}
		if got := all("a", to); got != 31 {
			t.Errorf("%d ports while the kernel keeps 50, want 31", got)
		}
		before := p.Stats().Used
		waittest.Pass(timeWait + 2*time.Second)
		if got := before - p.Stats().Used; got != 50 {
			t.Errorf("%d have come back after a minute, want 50", got)
		}
	})
}

// They do so after a minute even if the host's clock is set back meanwhile.
func TestPortsWhenTheClockIsSetBack(t *testing.T) {
	to := netip.MustParseAddrPort("192.0.2.1:443")
	p := NewPorts(400)
	p.Take("a", to)
	p.Give("a", to, true)
	later := time.Now().Add(timeWait + 2*time.Second)
	moved := later // as time.Now would return it: its monotonic part goes on, which package time cannot make
	*(*uint64)(unsafe.Pointer(&moved)) -= 3600 << 30
	if moved.Sub(later) != 0 || moved.Unix() != later.Unix()-3600 {
		t.Fatalf("%s was made of %s", moved, later)
	}
	p.expire(moved)
	if used := p.Stats().Used; used != 0 {
		t.Errorf("%d ports are kept", used)
	}
}

// A user who connects to ever new addresses is bounded as well, and leaves nothing behind.
func TestPortsOverAllDestinations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPorts(100)
		addr, n := netip.MustParseAddr("192.0.2.1"), 0
		for ; p.Take("a", netip.AddrPortFrom(addr, 443)); n++ {
			p.Give("a", netip.AddrPortFrom(addr, 443), true)
			addr = addr.Next()
		}
		if n != 100 {
			t.Errorf("%d ports towards as many addresses, want 100", n)
		}
		if !p.Take("b", netip.AddrPortFrom(addr, 443)) {
			t.Error("another user finds none")
		}
		p.Give("b", netip.AddrPortFrom(addr, 443), false)
		waittest.Pass(timeWait + 2*time.Second)
		if used := p.Stats().Used; used != 0 || len(p.pools) != 0 || len(p.waiting) != 0 {
			t.Errorf("%d ports, %d destinations, %d waiting are remembered", used, len(p.pools), len(p.waiting))
		}
	})
}

func TestTheHostsNumbers(t *testing.T) {
	if n, err := Descriptors(); err != nil || n < 64 {
		t.Errorf("%d descriptors, %v", n, err)
	}
	for descriptors, want := range map[int]int{512: 256, 1024: 512, 4096: 3072, 20_000: 15_000} {
		if got := Spare(descriptors); got != want {
			t.Errorf("of %d there are %d, want %d", descriptors, got, want)
		}
	}
	if n := TCPMemory(); n < 1<<20 {
		t.Errorf("%d bytes for TCP", n)
	}
	if n := LocalPorts(); n < 1 {
		t.Errorf("%d ports", n)
	}
}
