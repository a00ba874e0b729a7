package rules

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestConfigFaults(t *testing.T) {
	if err := testConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	for want, spoil := range map[string]func(*Config){
		"table":                 func(c *Config) { c.Table = "" },
		`table "a b"`:           func(c *Config) { c.Table = "a b" },
		"no bridges":            func(c *Config) { c.Bridges = nil },
		"up to 14 letters":      func(c *Config) { c.Bridges[0].Name = "daycare-isolated" },
		"letter":                func(c *Config) { c.Bridges[0].Name = "br*" },
		"named twice":           func(c *Config) { c.Bridges[0].Name = local },
		"overlaps":              func(c *Config) { c.Bridges[0].Subnet = prefix("10.77.0.0/16") },
		"host bits":             func(c *Config) { c.Bridges[0].Subnet = prefix("10.77.1.1/24") },
		"IPv4 network":          func(c *Config) { c.Bridges[0].Subnet = prefix("fd00::/64") },
		"subnet invalid":        func(c *Config) { c.Bridges[0].Subnet = netip.Prefix{} },
		"gateway 10.77.1.255":   func(c *Config) { c.Bridges[0].Gateway = addr("10.77.1.255") },
		"gateway 10.77.2.1":     func(c *Config) { c.Bridges[0].Gateway = addr("10.77.2.1") },
		"gateway invalid":       func(c *Config) { c.Bridges[0].Gateway = netip.Addr{} },
		"reach everything":      func(c *Config) { c.Bridges[1].NonPublic = nil },
		"no IPv4 prefix":        func(c *Config) { c.Bridges[1].NonPublic = []netip.Prefix{prefix("fc00::/7")} },
		"a prefix is not valid": func(c *Config) { c.Bridges[1].NonPublic = make([]netip.Prefix, 1) },
		"0 questions":           func(c *Config) { c.Questions = 0 },
		"0 connections":         func(c *Config) { c.Connections = 0 },
		"closed port is 0":      func(c *Config) { c.ClosedPorts = []uint16{25, 0} },
	} {
		c := testConfig()
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestStateFaults(t *testing.T) {
	addr := netip.MustParseAddr("10.77.1.11")
	fine := Binding{Veth: "veth1", MAC: []byte{2, 0, 0, 0, 0, 1}, Addr: addr}
	other := netip.MustParseAddr("10.77.1.12")
	with := func(change func(*Binding)) Binding { b := fine; change(&b); return b }
	one := func(addr string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(addr)} }
	for want, s := range map[string]State{
		"":                   {[]netip.Addr{addr, other}, []Binding{fine}},
		"given twice":        {[]netip.Addr{addr, addr}, nil},
		"not one that":       {one("10.77.1.1"), nil},
		"10.77.1.255":        {one("10.77.1.255"), nil},
		"192.168.1.1":        {one("192.168.1.1"), nil},
		"invalid IP":         {make([]netip.Addr, 1), nil},
		"no container has":   {nil, []Binding{fine}},
		"bound twice":        {[]netip.Addr{addr}, []Binding{fine, fine}},
		"one of them":        {[]netip.Addr{addr, other}, []Binding{fine, with(func(b *Binding) { b.Addr = other })}},
		"that is the bridge": {[]netip.Addr{addr}, []Binding{with(func(b *Binding) { b.Veth = local })}},
		"name of an interf":  {[]netip.Addr{addr}, []Binding{with(func(b *Binding) { b.Veth = "veth*" })}},
		"hardware address":   {[]netip.Addr{addr}, []Binding{with(func(b *Binding) { b.MAC = broadcast })}},
		"no hardware":        {[]netip.Addr{addr}, []Binding{with(func(b *Binding) { b.MAC = nil })}},
	} {
		if err := s.validate(testConfig()); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestIntervals(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.0/8":                             "10.0.0.0-11.0.0.0",
		"0.0.0.0/0":                              "0.0.0.0-",
		"240.0.0.0/4 224.0.0.0/4":                "224.0.0.0-",
		"10.0.0.0/8 10.1.0.0/16 10.255.255.0/24": "10.0.0.0-11.0.0.0",
		"10.0.0.0/9 10.128.0.0/9":                "10.0.0.0-11.0.0.0",
		"192.168.0.0/16 10.0.0.1/32 fc00::/7":    "10.0.0.1-10.0.0.2 192.168.0.0-192.169.0.0",
		"255.255.255.255/32 127.0.0.0/8":         "127.0.0.0-128.0.0.0 255.255.255.255-",
	} {
		var prefixes []netip.Prefix
		for _, s := range strings.Fields(in) {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		got := ""
		for _, e := range intervals(prefixes) {
			a, _ := netip.AddrFromSlice(e.Key)
			if e.IntervalEnd {
				got += a.String()
			} else {
				got += " " + a.String() + "-"
			}
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// The addresses outside of some prefixes and those in them are all addresses, each once.
func TestOutside(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "0.0.0.0/0",
		"0.0.0.0/0":             "",
		"128.0.0.0/1 fc00::/7":  "0.0.0.0/1",
		"64.0.0.0/2 96.0.0.0/3": "0.0.0.0/2 128.0.0.0/1",
		"255.255.255.254/31 0.0.0.0/1 128.0.0.0/2 192.0.0.0/3 224.0.0.0/4 240.0.0.0/5 248.0.0.0/6 252.0.0.0/7 254.0.0.0/8 255.0.0.0/9": "255.128.0.0/10 255.192.0.0/11 255.224.0.0/12 255.240.0.0/13 255.248.0.0/14 255.252.0.0/15 255.254.0.0/16 " +
			"255.255.0.0/17 255.255.128.0/18 255.255.192.0/19 255.255.224.0/20 255.255.240.0/21 255.255.248.0/22 255.255.252.0/23 255.255.254.0/24 255.255.255.0/25 " +
			"255.255.255.128/26 255.255.255.192/27 255.255.255.224/28 255.255.255.240/29 255.255.255.248/30 255.255.255.252/31",
	} {
		var prefixes []netip.Prefix
		for _, s := range strings.Fields(in) {
			prefixes = append(prefixes, netip.MustParsePrefix(s))
		}
		got := ""
		for _, p := range outside(prefixes) {
			got += " " + p.String()
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// testdata/ruleset.nft is what nft makes of the rules in the kernel: for readers, and so that a change
// of them is seen. UPDATE=1 writes it.
func TestRulesetAsText(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal("nft is not installed: scripts/setup.sh tests installs it")
	}
	w := newWorld(t)
	must(t, w.table.Apply(t.Context(), State{
		Containers: []netip.Addr{w.i1.addr, w.i2.addr, w.l1.addr},
		Bindings:   []Binding{w.i1.binding(), w.l1.binding()},
	}))
	var text []byte
	w.host.do(t, func() error {
		for _, family := range []string{"bridge", "arp", "inet"} {
			out, err := exec.Command(nft, "-y", "list", "table", family, "daycare").CombinedOutput()
			if text = append(text, out...); err != nil {
				return err
			}
		}
		return nil
	})
	const golden = "testdata/ruleset.nft"
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(golden, text, 0o644))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	// The order of elements is that of a hash; the first of two containers may come second.
	lines := func(b []byte) []string {
		all := strings.Fields(strings.ReplaceAll(string(b), ",", " "))
		slices.Sort(all)
		return all
	}
	if !slices.Equal(lines(want), lines(text)) {
		t.Errorf("the rules have changed; if they should: UPDATE=1 go test -run %s\n%s", t.Name(), text)
	}
}
