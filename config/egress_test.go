package config_test

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/config"
)

func TestEgress(t *testing.T) {
	most := strings.Repeat("s", 32)
	tests := []struct {
		name string
		set  func(*config.Egress)
		want []string
	}{
		{"no subnets", func(e *config.Egress) { e.Subnets = nil },
			[]string{`egress.subnets: [] leaves the networks without addresses: want at least one prefix`}},
		{"subnets", func(e *config.Egress) {
			e.Subnets = []string{"10.0.0.0/23", "10.9.8.7/16", "10.2.0.0/24", "9.0.0.0/8", "10.0.0.0/8", "fd00::/8"}
		}, []string{
			`egress.subnets[1]: "10.9.8.7/16" has bits beyond its length: write 10.9.0.0/16`,
			`egress.subnets[2]: "10.2.0.0/24" is too small for two networks of /24: want /23 or larger`,
			`egress.subnets[3]: "9.0.0.0/8" is not private: want one in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10`,
			`egress.subnets[4]: "10.0.0.0/8" overlaps 10.0.0.0/23`,
			`egress.subnets[5]: "fd00::/8" is no IPv4 prefix: want one such as 10.20.0.0/16`,
		}},
		{"public besides", func(e *config.Egress) {
			e.AlsoPublic = []string{"10.0.0.0/8", "10.0.0.0/7", "10.0.0.1/31", "169.254.169.254/32", "10.0.0.1"}
		}, []string{
			`egress.alsoPublic[1]: "10.0.0.0/7" is too large: want /8 or smaller`,
			`egress.alsoPublic[2]: "10.0.0.1/31" has bits beyond its length: write 10.0.0.0/31`,
			`egress.alsoPublic[3]: "169.254.169.254/32" overlaps 169.254.0.0/16, which no container may reach`,
			`egress.alsoPublic[4]: "10.0.0.1" is no IPv4 prefix: want one such as 10.20.0.0/16`,
		}},
		{"own addresses", func(e *config.Egress) {
			e.OwnAddresses = []string{"203.0.113.7", "203.0.113.0/24", "fd00::1", "x", "203.0.113.7"}
		}, []string{
			`egress.ownAddresses[1]: "203.0.113.0/24" is no IPv4 address: want one such as 203.0.113.7`,
			`egress.ownAddresses[2]: "fd00::1" is no IPv4 address: want one such as 203.0.113.7`,
			`egress.ownAddresses[3]: "x" is no IPv4 address: want one such as 203.0.113.7`,
		}},
		{"ports", func(e *config.Egress) { e.ExtraPorts = []int{1, 65535, 0, -1, 65536, 53, 80, 443, 22, 22} }, []string{
			`egress.extraPorts[2]: 0 is not from 1 to 65535`,
			`egress.extraPorts[3]: -1 is not from 1 to 65535`,
			`egress.extraPorts[4]: 65536 is not from 1 to 65535`,
			`egress.extraPorts[5]: 53 is refused: 53, 80 and 443 have rules of their own`,
			`egress.extraPorts[6]: 80 is refused: 53, 80 and 443 have rules of their own`,
			`egress.extraPorts[7]: 443 is refused: 53, 80 and 443 have rules of their own`,
			`egress.extraPorts[9]: 22 is given more than once`,
		}},
		{"presets", func(e *config.Egress) {
			e.Presets = map[string][]string{most: {"a.b"}, "a-": {"*", " "}, most + "x": {"a.b"}, "1": {""}, "": nil}
		}, []string{
			`egress.presets."": "" is no name of a preset: want 1 to 32 of a-z, 0-9 and "-", a letter first`,
			`egress.presets."": [] names no domain`,
			`egress.presets.1: "1" is no name of a preset: want 1 to 32 of a-z, 0-9 and "-", a letter first`,
			`egress.presets.1[0]: "" names no domain`,
			`egress.presets.` + most + `x: "` + most + `x" is no name of a preset: want 1 to 32 of a-z, 0-9 and "-", a letter first`,
		}},
		{"bounds of egress, below", func(e *config.Egress) {
			e.QueriesPerSecond, e.MaxConnections, e.MaxUserConnections, e.MaxDomains, e.DecisionLog, e.SubnetBits = 0, 0, 0, 0, 99, 15
		}, []string{
			`egress.subnetBits: 15 is not from 16 to 24`,
			`egress.queriesPerSecond: 0 is not from 1 to 1000000`,
			`egress.maxConnections: 0 is not from 1 to 65536`,
			`egress.maxUserConnections: 0 is not from 1 to 1000000`,
			`egress.maxDomains: 0 is not from 1 to 10000`,
			`egress.decisionLog: 99 is not from 100 to 1000000`,
		}},
		{"bounds of egress, above", func(e *config.Egress) {
			e.QueriesPerSecond, e.MaxConnections, e.MaxUserConnections, e.MaxDomains, e.DecisionLog, e.SubnetBits = 1_000_001, 65537, 1_000_001, 10_001, 1_000_001, 25
		}, []string{
			`egress.subnetBits: 25 is not from 16 to 24`,
			`egress.queriesPerSecond: 1000001 is not from 1 to 1000000`,
			`egress.maxConnections: 65537 is not from 1 to 65536`,
			`egress.maxUserConnections: 1000001 is not from 1 to 1000000`,
			`egress.maxDomains: 10001 is not from 1 to 10000`,
			`egress.decisionLog: 1000001 is not from 100 to 1000000`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			validate(t, func(c *config.Config) { tt.set(&c.Egress) }, tt.want)
		})
	}
}

func TestNamesOfNetworks(t *testing.T) {
	for name, good := range map[string]bool{
		"a": true, "daycare": true, "a-b-1": true, "elevenbytes": true,
		"": false, "-a": false, "a-": false, "1a": false, "Daycare": false, "a_b": false, "a.b": false, "a/b": false,
		"a b": false, "a\n": false, "é": false, "twelve-bytes": false,
	} {
		c := config.Default()
		c.Egress.Name = name
		if err := c.Validate(); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		} else if !good && !strings.Contains(err.Error(), "\n  egress.name: \"") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
