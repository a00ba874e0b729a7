package policy

import (
	"net/netip"
	"testing"
)

func TestAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		"1.1.1.1": "public", "8.8.8.8": "public", "9.255.255.255": "public", "11.0.0.0": "public",
		"100.63.255.255": "public", "100.128.0.0": "public", "126.255.255.255": "public",
		"128.0.0.0": "public", "169.253.255.255": "public", "169.255.0.0": "public",
		"172.15.255.255": "public", "172.32.0.0": "public", "192.0.1.0": "public",
		"192.167.255.255": "public", "192.169.0.0": "public", "198.17.255.255": "public",
		"198.20.0.0": "public", "223.255.255.255": "public",

		"0.0.0.0": "neither", "0.1.2.3": "neither", "127.0.0.1": "neither", "127.255.255.255": "neither",
		"169.254.169.254": "neither", "192.0.0.192": "neither", "192.0.2.1": "neither",
		"192.88.99.1": "neither", "198.18.0.1": "neither", "198.19.255.255": "neither",
		"198.51.100.7": "neither", "203.0.113.255": "neither", "224.0.0.251": "neither",
		"239.255.255.255": "neither", "240.0.0.1": "neither", "255.255.255.255": "neither",

		"10.0.0.0": "private", "10.255.255.255": "private", "100.64.0.1": "private",
		"100.127.255.255": "private", "172.16.0.1": "private", "172.31.255.255": "private",
		"192.168.0.1": "private", "192.168.255.255": "private",

		"2606:4700:4700::1111": "public", "2a00:1450:4001::200e": "public", "2001:4860:4860::8888": "public",
		"2003::1": "public", "2400::": "public", "3fff:1000::": "public",

		"::": "neither", "::1": "neither", "::7f00:1": "neither",
		"::ffff:127.0.0.1": "neither", "::ffff:10.0.0.1": "neither", "::ffff:8.8.8.8": "neither",
		"::ffff:0:a00:1": "neither", "64:ff9b::a00:1": "neither", "64:ff9b::8.8.8.8": "neither",
		"64:ff9b:1::a00:1": "neither", "100::1": "neither", "2001::1": "neither", "2001:20::1": "neither",
		"2001:db8::1": "neither", "2002:7f00:1::": "neither", "2002:a00:1::1": "neither",
		"3fff::1": "neither", "5f00::1": "neither", "4000::": "neither", "fe80::1": "neither",
		"fe80::1%eth0": "neither", "2606:4700::1%eth0": "neither", "fec0::1": "neither",
		"ff02::1": "neither", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff": "neither",

		"fc00::1": "private", "fd12:3456::1": "private", "fd00::1%eth0": "neither",
	} {
		a := netip.MustParseAddr(addr)
		if got := publicAddress(a); got != (want == "public") {
			t.Errorf("Public(%s) = %t, want it %s", addr, got, want)
		}
		if got := privateAddress(a); got != (want == "private") {
			t.Errorf("Private(%s) = %t, want it %s", addr, got, want)
		}
	}
	if publicAddress(netip.Addr{}) || privateAddress(netip.Addr{}) || (Addresses{Private: true}).Admits(netip.Addr{}) {
		t.Error("an address that is none is public or private")
	}
}

func TestSpansDoNotOverlap(t *testing.T) {
	for i, p := range spanPrefixes() {
		if p != p.Masked() {
			t.Errorf("%s has bits below its length", p)
		}
		if spans[i].rfc == "" {
			t.Errorf("%s has no RFC", p)
		}
		for _, other := range spanPrefixes()[:i] {
			if p.Overlaps(other) {
				t.Errorf("%s and %s overlap", p, other)
			}
		}
	}
}

func TestAddressesOfAProfile(t *testing.T) {
	own := func(a netip.Addr) bool {
		return a == netip.MustParseAddr("192.168.0.5") || a == netip.MustParseAddr("8.8.4.4")
	}
	isolated := Addresses{Own: own}
	local := Addresses{Own: own, Private: true}
	test := Addresses{Own: own, Extra: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("8.8.4.0/24")}}
	for _, row := range []struct {
		addr                  string
		isolated, local, test bool
	}{
		{"1.1.1.1", true, true, true},
		{"192.168.0.1", false, true, false},
		{"192.168.0.5", false, false, false},
		{"8.8.4.4", false, false, false},
		{"127.0.0.1", false, false, false},
		{"169.254.169.254", false, false, false},
		{"198.51.100.1", false, false, true},
		{"::ffff:192.168.0.1", false, false, false},
		{"::ffff:198.51.100.1", false, false, false},
		{"64:ff9b::c0a8:1", false, false, false},
		{"fd00::1", false, true, false},
	} {
		a := netip.MustParseAddr(row.addr)
		if i, l, x := isolated.Admits(a), local.Admits(a), test.Admits(a); i != row.isolated || l != row.local || x != row.test {
			t.Errorf("%s: isolated %t, local %t, test %t", row.addr, i, l, x)
		}
	}
}

// What is excluded is exactly what is not admitted, whoever asks.
func TestExcluded4(t *testing.T) {
	for name, f := range map[string]Addresses{
		"public": {}, "private": {Private: true},
		"also some": {Extra: prefixesOf("198.51.100.0/24", "10.9.8.7/32", "172.16.0.0/9", "8.8.8.0/24", "0.0.0.0/1")},
		"all":       {Extra: prefixesOf("0.0.0.0/0")},
	} {
		excluded := f.Excluded4()
		for i, p := range excluded {
			if p != p.Masked() || !p.Addr().Is4() {
				t.Errorf("%s: %s", name, p)
			}
			for _, other := range excluded[:i] {
				if p.Overlaps(other) {
					t.Errorf("%s: %s and %s overlap", name, p, other)
				}
			}
			// The edges of every prefix, and what lies right beside them.
			last := p.Addr().As4()
			for bit := p.Bits(); bit < 32; bit++ {
				last[bit/8] |= 0x80 >> (bit % 8)
			}
			for _, addr := range []netip.Addr{p.Addr(), netip.AddrFrom4(last), p.Addr().Prev(), netip.AddrFrom4(last).Next()} {
				in := false
				for _, q := range excluded {
					in = in || q.Contains(addr)
				}
				if addr.IsValid() && in == f.Admits(addr) {
					t.Errorf("%s: %s is excluded %t and admitted %t", name, addr, in, f.Admits(addr))
				}
			}
		}
	}
	if got := (Addresses{Extra: prefixesOf("0.0.0.0/0")}).Excluded4(); len(got) != 0 {
		t.Errorf("all is let through, but %v is excluded", got)
	}
}

func prefixesOf(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}
