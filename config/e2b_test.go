package config_test

import (
	"strings"
	"testing"

	"github.com/daycare-run/sandbox/config"
)

func TestE2B(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*config.Config)
		want   string // empty for no fault
	}{
		{"tokens, without tcp", func(*config.Config) {}, ""},
		{"template", func(c *config.Config) {
			c.E2B.Templates = map[string]config.E2BTemplate{"node-24": {Image: "node:24", CPUs: 0.5, Memory: 1 << 30, Env: map[string]string{"A": "b"}}}
		}, ""},
		{"no tokens", func(c *config.Config) { c.TCP.TokensFile = "" }, "tcp.tokensFile: is not set"},
		{"no port", func(c *config.Config) { c.E2B.Listen = "127.0.0.1" }, `e2b.listen: "127.0.0.1" has no port`},
		{"tcp's own", func(c *config.Config) { c.TCP.Listen = c.E2B.Listen }, "e2b.listen"},
		{"tokens for nothing", func(c *config.Config) { c.E2B.Listen = "" }, "tcp.tokensFile: is set, but"},
		{"network", func(c *config.Config) { c.E2B.DefaultNetwork = "opne" }, "e2b.defaultNetwork"},
		{"name", func(c *config.Config) { c.E2B.Templates = map[string]config.E2BTemplate{"No/t": {}} }, "e2b.templates"},
		{"processors", func(c *config.Config) { c.E2B.Templates = map[string]config.E2BTemplate{"a": {CPUs: -1}} }, "e2b.templates.a.cpus"},
		{"memory", func(c *config.Config) { c.E2B.Templates = map[string]config.E2BTemplate{"a": {Memory: 1}} }, "e2b.templates.a.memory"},
		{"variable", func(c *config.Config) {
			c.E2B.Templates = map[string]config.E2BTemplate{"a": {Env: map[string]string{"A=": ""}}}
		}, "e2b.templates.a.env"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			c.E2B.Listen, c.TCP.TokensFile = "127.0.0.1:7482", "/etc/tokens.json"
			tt.change(&c)
			err := c.Validate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, not %q", err, tt.want)
			}
		})
	}
}
