package egress

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dockerexec/networks"
)

// slowTable is one that takes its time to forget, until told.
type slowTable struct {
	none
	forget chan error
}

func (*slowTable) Add(netip.Addr) error      { return nil }
func (t *slowTable) Forget(netip.Addr) error { return <-t.forget }

// An address is nobody's until what was left of its container is forgotten; the container itself may come
// back meanwhile, and have another.
func TestAddressesWaitForWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{forget: make(chan error)}
		s := &stack{owner: &Egress{cfg: Config{Log: zerolog.Nop()}}, table: table, stop: func() {}}
		s.endpoints.init(networks.Network{Profile: "isolated", Subnet: netip.MustParsePrefix("10.1.2.0/29"), Gateway: netip.MustParseAddr("10.1.2.1")})
		add := func(name string, holder uint64) netip.Addr {
			t.Helper()
			addr, err := s.add(testParty(name, "*"), holder)
			if err != nil {
				t.Fatal(err)
			}
			return addr
		}
		first := add("c0", 1)
		for i, name := range []string{"c1", "c2", "c3"} {
			add(name, uint64(2+i))
		}
		s.remove(1)
		s.remove(1) // once more is nothing more
		if who := s.endpoints.dnsEndpoint(first); who != nil {
			t.Error("who was removed may ask")
		}
		if again := add("c0", 5); again == first {
			t.Error("the address was given out while flows of it were left")
		}
		if _, err := s.add(testParty("c4", "*"), 6); !errors.Is(err, errdefs.ErrResourceExhausted) {
			t.Errorf("full, but for what is not forgotten: %v", err)
		}
		table.forget <- nil
		synctest.Wait()
		if addr := add("c4", 7); addr != first {
			t.Errorf("the address that is free is %s, not %s", first, addr)
		}
		s.remove(1) // nor is it anything to who has the address now
		if s.endpoints.dnsEndpoint(first) == nil {
			t.Error("the next one with the address was cut off")
		}

		s.remove(7)
		table.forget <- errors.New("the kernel does not want to")
		synctest.Wait()
		if _, err := s.add(testParty("c5", "*"), 8); !errors.Is(err, errdefs.ErrResourceExhausted) {
			t.Errorf("an address was given out whose flows are still tracked: %v", err)
		}
	})
}

// failingTable cuts nobody off the first time.
type failingTable struct {
	none
	failed bool
}

func (f *failingTable) Remove(netip.Addr) error {
	if f.failed {
		return nil
	}
	f.failed = true
	return errors.New("the kernel was busy once")
}

// A container that could not be cut off keeps its address, and the next one of its name gets another.
func TestAnAddressThatCannotBeCutOff(t *testing.T) {
	s := &stack{owner: &Egress{cfg: Config{Log: zerolog.Nop()}}, table: &failingTable{}, stop: func() {}}
	s.endpoints.init(networks.Network{Profile: "isolated", Subnet: netip.MustParsePrefix("10.1.2.0/24"), Gateway: netip.MustParseAddr("10.1.2.1")})
	open := testParty("c", "*")
	first, err := s.add(open, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.remove(1)
	if again, err := s.add(open, 2); err != nil || again == first {
		t.Errorf("%s after %s: %v", again, first, err)
	}
}

// Background work is bounded: what is too much is done by its caller.
func TestBackgroundWorkIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stack{}
		release := make(chan struct{})
		for range backgroundLimit {
			s.background(func() { <-release })
		}
		done := false
		s.background(func() { done = true })
		if !done {
			t.Error("more than the bound was begun")
		}
		close(release)
		synctest.Wait()
		s.background(func() { <-t.Context().Done() })
		if s.pending != 1 {
			t.Errorf("%d are counted", s.pending)
		}
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		done = false
		s.background(func() { done = true })
		if !done {
			t.Error("something was begun after the end")
		}
	})
}
