package main

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/config"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/policy"
)

// egressRules returns the rules for the names that calls may ask for.
func egressRules(cfg config.Config) (policy.EgressRules, error) {
	presets, err := policy.NewPresets(cfg.Egress.Presets)
	if err != nil {
		return policy.EgressRules{}, fmt.Errorf("egress.presets: %w", err)
	}
	return policy.EgressRules{Presets: presets,
		AllowGlobalWildcard: cfg.Egress.AllowGlobalWildcard}, nil
}

// egressSettings returns the part of the egress configuration that the settings decide.
func egressSettings(cfg config.Config, verdicts *decisions.Log, log zerolog.Logger) egress.Config {
	e := cfg.Egress
	ports := make([]uint16, len(e.ExtraPorts))
	for i, port := range e.ExtraPorts {
		ports[i] = uint16(port)
	}
	return egress.Config{
		Name:           e.Name,
		Dir:            filepath.Join(cfg.DataDir, "network"),
		GatewayProgram: "/proc/self/exe", GatewayDir: filepath.Join(cfg.DataDir, "gateway"),
		Profiles: map[string]egress.Profile{
			"isolated": {Upstreams: upstreams(cfg)["isolated"]},
			"local":    {Upstreams: upstreams(cfg)["local"], Private: true},
		},
		Subnets: parsed(e.Subnets, netip.MustParsePrefix), SubnetBits: e.SubnetBits,
		AlsoPublic: parsed(e.AlsoPublic, netip.MustParsePrefix), ExtraPorts: ports,
		Own: parsed(e.OwnAddresses, netip.MustParseAddr), AskMetadata: e.AskMetadata,
		QueriesPerSecond: e.QueriesPerSecond, MaxConnections: e.MaxConnections,
		MaxUserConnections: e.MaxUserConnections,
		AcceptUnfiltered:   cfg.Docker.EnableWeakerNestedSandbox,
		Decisions:          verdicts, Log: log,
	}
}

// upstreams returns the resolvers of each profile.
func upstreams(cfg config.Config) map[string][]string {
	return map[string][]string{"isolated": cfg.Docker.IsolatedDNSServers,
		"local": cfg.Docker.LocalDNSServers}
}

// parsed parses texts that config has already validated.
func parsed[T any](texts []string, parse func(string) T) []T {
	list := make([]T, len(texts))
	for i, text := range texts {
		list[i] = parse(text)
	}
	return list
}

func localUsers(cfg config.Config) map[string]bool {
	users := map[string]bool{}
	for _, user := range cfg.Docker.AllowLocalNetworkingForUsers {
		users[user] = true
	}
	return users
}
