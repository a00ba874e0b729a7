package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/daycare-run/sandbox/config"
)

func TestPeers(t *testing.T) {
	for _, tt := range []struct {
		access config.Access
		want   []uint32
	}{
		{config.Access{}, []uint32{0, 77}},
		{config.Access{Peers: []int{1000, 5}}, []uint32{1000, 5}},
	} {
		if diff := cmp.Diff(tt.want, tt.access.PeerUIDs(77)); diff != "" {
			t.Errorf("%v: want (-), got (+):\n%s", tt.access, diff)
		}
	}
}

// TestFaultsOfAccess has a good TCP section in which one thing is changed.
func TestFaultsOfAccess(t *testing.T) {
	good := func(change func(*config.Config)) config.Config {
		c := config.Default()
		c.TCP = config.TCP{Listen: "127.0.0.1:7480", TokensFile: "/etc/tokens.json"}
		change(&c)
		return c
	}
	for _, tt := range []struct {
		name   string
		change func(*config.Config)
		want   string // a part of the faults; empty for none
	}{
		{"loopback", func(*config.Config) {}, ""},
		{"all addresses", func(c *config.Config) { c.TCP.Listen = ":1" }, ""},
		{"IPv6", func(c *config.Config) { c.TCP.Listen = "[::1]:65535" }, ""},
		{"localhost", func(c *config.Config) { c.TCP.Listen = "localhost:7480" }, ""},
		{"TLS with certificates of callers", func(c *config.Config) {
			c.TCP.CertFile, c.TCP.KeyFile, c.TCP.ClientCAFile = "/c", "/k", "/ca"
		}, ""},
		{"nobody", func(c *config.Config) { c.Access.Peers = []int{} }, "access.peers: [] lets nobody call"},
		{"no uid", func(c *config.Config) { c.Access.Peers = []int{0, -1} }, "access.peers[1]: -1 is not from 0 to"},
		{"the uid that is none", func(c *config.Config) { c.Access.Peers = []int{1<<32 - 1} }, "access.peers[0]"},
		{"uid twice", func(c *config.Config) { c.Access.Peers = []int{7, 7} }, "access.peers[1]: 7 is given more than once"},
		{"no port", func(c *config.Config) { c.TCP.Listen = "127.0.0.1" }, `tcp.listen: "127.0.0.1" has no port`},
		{"port 0", func(c *config.Config) { c.TCP.Listen = "127.0.0.1:0" }, "tcp.listen"},
		{"name", func(c *config.Config) { c.TCP.Listen = "example.org:80" }, "tcp.listen: \"example.org:80\" is no address to listen on"},
		{"IPv6 without brackets", func(c *config.Config) { c.TCP.Listen = "::1:80" }, "tcp.listen"},
		{"IPv4 in brackets", func(c *config.Config) { c.TCP.Listen = "[127.0.0.1]:80" }, "tcp.listen"},
		{"no tokens", func(c *config.Config) { c.TCP.TokensFile = "" }, "tcp.tokensFile: is not set"},
		{"tokens where users write", func(c *config.Config) { c.TCP.TokensFile = "/data/users/t" }, "tcp.tokensFile: \"/data/users/t\" is in usersDir"},
		{"relative", func(c *config.Config) { c.TCP.TokensFile = "t" }, "tcp.tokensFile: \"t\" is not absolute"},
		{"key without certificate", func(c *config.Config) { c.TCP.KeyFile = "/k" }, "tcp.certFile: and tcp.keyFile go together"},
		{"authorities without TLS", func(c *config.Config) { c.TCP.ClientCAFile = "/ca" }, "tcp.clientCaFile: is set without tcp.certFile"},
		{"host with a port", func(c *config.Config) { c.TCP.AllowedHosts = []string{"a.org", "b.org:80"} }, "tcp.allowedHosts[1]"},
		{"any page", func(c *config.Config) { c.TCP.AllowedOrigins = []string{"*"} }, "tcp.allowedOrigins[0]"},
		{"page with a path", func(c *config.Config) { c.TCP.AllowedOrigins = []string{"https://a.org/"} }, "tcp.allowedOrigins[0]"},
		{"tokens for nothing", func(c *config.Config) { c.TCP.Listen = "" }, "tcp.tokensFile: is set, but neither tcp.listen nor e2b.listen is"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := good(tt.change).Validate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}
