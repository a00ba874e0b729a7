package gateway

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func good() Config {
	return Config{Version: Version, Address: netip.MustParseAddr("10.77.1.1"), Ports: []uint16{22}, Questions: 100, Connections: 100}
}

func TestConfig(t *testing.T) {
	c := good()
	text, err := c.Argument()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Parse(text); err != nil || got.Address != c.Address || !slices.Equal(got.Ports, c.Ports) || got.Questions != 100 || got.Connections != 100 {
		t.Errorf("%+v, %v", got, err)
	}
	for want, spoil := range map[string]func(*Config){
		"version 7":         func(c *Config) { c.Version = 7 },
		"IPv4":              func(c *Config) { c.Address = netip.MustParseAddr("fd00::1") },
		"invalid IP":        func(c *Config) { c.Address = netip.Addr{} },
		"port 443":          func(c *Config) { c.Ports = []uint16{443} },
		"port 0":            func(c *Config) { c.Ports = []uint16{0} },
		"129 ports":         func(c *Config) { c.Ports = slices.Repeat([]uint16{22}, 129) },
		"0 questions":       func(c *Config) { c.Questions = 0 },
		"65537 addresses":   func(c *Config) { c.Addresses = 65537 },
		"-1 connections a ": func(c *Config) { c.Connections = -1 },
	} {
		c := good()
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := Parse("{"); err == nil {
		t.Error("half a configuration was read")
	}
}

// A larger network has as many meters as addresses; the gateway of one that is not larger is what it was.
func TestMetersOfALargerNetwork(t *testing.T) {
	for subnet, want := range map[string]uint32{"10.0.0.0/16": 65536, "10.0.0.0/19": 8192, "10.0.0.0/20": 4096, "10.0.0.0/22": 4096} {
		c := good()
		c.Addresses = AddressesOf(netip.MustParsePrefix(subnet))
		text, err := c.Argument()
		if err != nil || c.sources() != want || strings.Contains(text, "addresses") != (want > 4096) {
			t.Errorf("%s: %d sources, %s, %v", subnet, c.sources(), text, err)
		}
	}
}

func TestLinkNames(t *testing.T) {
	for _, text := range []string{"10.77.1.11", "255.255.255.255", "0.0.0.1"} {
		addr := netip.MustParseAddr(text)
		name := LinkName(addr)
		if got, ok := linkAddr(name); !ok || got != addr || len(name) > 15 {
			t.Errorf("%s: %s, %v", text, name, got)
		}
	}
	for _, name := range []string{"lo", "eth0", "to0a4d010", "to0a4d010b0", "to0A4D010B", "xx0a4d010b"} {
		if addr, ok := linkAddr(name); ok {
			t.Errorf("%s: %s", name, addr)
		}
	}
}
