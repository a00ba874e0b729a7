package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/e2e/inet"
	"github.com/daycare-run/sandbox/internal/egress/rules"
)

// The benchmarks have a test internet of their own, so that they and the tests may run at once. It
// is in the range that is set aside for benchmarks (RFC 2544).
var worldPublic = netip.MustParsePrefix("198.19.51.0/24")

const (
	worldName = "bench-inet"
	// originName is the name of the origin, whose address has the number originNumber.
	originName   = "origin.bench.example"
	originNumber = 10
)

// newWorld makes the test internet with one origin.
func newWorld(ctx context.Context) (*inet.Inet, error) {
	world, err := inet.New(ctx, inet.Config{Name: worldName, Public: worldPublic})
	if err != nil {
		return nil, err
	}
	origin := world.Addr(originNumber)
	if err := world.Origin(origin); err != nil {
		return nil, errors.Join(err, world.Close())
	}
	world.DNS.SetA(originName, time.Hour, origin)
	return world, nil
}

// profileName is the service's name for the network of calls with names.
const profileName = "isolated"

// worldSettings are the settings of a service in the test internet, if there is one. First calls
// have to make a container.
func (l *lab) worldSettings() []string {
	if l.world == nil {
		return nil
	}
	return append([]string{
		"SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS=" + l.world.DNSServers()[0].String(),
		"SANDBOXD_EGRESS_ALSO_PUBLIC=" + worldPublic.String(),
		"SANDBOXD_EGRESS_ASK_METADATA=false",
	}, noPool...)
}

// The domains of a call: byName goes through the guard, anywhere goes past it.
var (
	byName   = []string{originName}
	anywhere = []string{"*"}
)

// caFile is the file in the home with the authority of the test internet's origins.
const caFile = "ca.pem"

// travel allows the user of the warm sandbox the network, and makes a container for each way.
func (s *service) travel(ctx context.Context) error {
	if err := os.WriteFile(s.inHome(caFile), s.world.CA(), 0o644); err != nil {
		return err
	}
	if _, err := s.api.Put(ctx, boxID, travelling(boxID)); err != nil {
		return err
	}
	for _, domains := range [][]string{byName, anywhere} {
		if _, err := s.reach(ctx, domains, "curl", "-sS", "--max-time", "20", "--cacert", "/home/"+caFile, "-o", "/dev/null", "https://"+originName+"/hello"); err != nil {
			return err
		}
	}
	return nil
}

func travelling(user string) types.Registration {
	return types.Registration{UserID: user, Permissions: types.Permissions{Network: true}}
}

// outgoing returns a call that may reach the domains.
func outgoing(domains []string, argv ...string) types.Exec {
	return types.Exec{Argv: argv, Permissions: []string{"@network"}, AllowedDomains: domains}
}

// reach runs a command that may reach the domains.
func (s *service) reach(ctx context.Context, domains []string, argv ...string) (types.Output, error) {
	return s.call(ctx, boxID, outgoing(domains, argv...))
}

// refusals says what a command could not reach.
func refusals(list []types.Refusal) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "; %s over %s: %s", r.Verdict, r.Via, r.Reason)
	}
	return b.String()
}

// removeRules removes a service's rules, after its containers are gone.
func removeRules(name string) error {
	if os.Geteuid() != 0 {
		return nil // the service could not make any
	}
	return rules.RemoveTables(0, name+"-"+profileName)
}
