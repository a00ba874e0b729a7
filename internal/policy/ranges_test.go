package policy

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/containerd/errdefs"
)

func TestRanges(t *testing.T) {
	r, err := ParseRanges([]string{"192.0.2.0/24", "198.51.100.7", "203.0.113.64/26"}, []string{"192.0.2.128/25", "198.51.100.0/24", "0.0.0.0/0", "203.0.113.64/26"})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"192.0.2.0": true, "192.0.2.127": true, "192.0.2.128": false, "192.0.2.255": false, "192.0.3.0": false,
		"198.51.100.7": true, "198.51.100.6": false, "198.51.100.8": false, "203.0.113.64": true, "203.0.113.63": false,
		"::ffff:192.0.2.1": false, "2001:db8::1": false,
	} {
		if got := r.Allows(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	if (Ranges{}).Allows(netip.MustParseAddr("192.0.2.1")) || (Ranges{}).Allows(netip.Addr{}) || r.Allows(netip.Addr{}) {
		t.Error("no range allows")
	}
	for _, wrong := range []string{"", "x", "192.0.2.1/24", "192.0.2.0/33", "192.0.2", "::1", "2001:db8::/32", "::ffff:192.0.2.1", "192.0.2.1:80", "fe80::1%eth0"} {
		if _, err := ParseRanges([]string{wrong}, nil); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v", wrong, err)
		}
		if _, err := ParseRanges(nil, []string{wrong}); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q denied: %v", wrong, err)
		}
	}
	if _, err := ParseRanges(make([]string, maxRanges+1), nil); err == nil {
		t.Error("as many as one likes")
	}
}
