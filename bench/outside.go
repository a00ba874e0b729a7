package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/e2e/inet"
	"github.com/daycare-run/sandbox/internal/egress/rules"
)

// The test internet of the benchmarks is beside the one of the tests, so that both may run at once, in
// the range that is set aside for benchmarks (RFC 2544).
var worldPublic = netip.MustParsePrefix("198.19.51.0/24")

const (
	worldName = "bench-inet"
	// originName is a name in it, of the address that originNumber is.
	originName   = "origin.bench.example"
	originNumber = 10
)

// checkMeans says what is missing for the parts that were chosen.
func checkMeans(cfg settings) error {
	if cfg.has(rootParts...) && os.Geteuid() != 0 {
		return fmt.Errorf("the sections %s make networks: run this as root, or choose others with --sections", strings.Join(rootParts, ", "))
	}
	for section, programs := range map[string][]string{"dns": {"dnsperf", "dnsmasq"}, "guard": {"ip", "haproxy"}} {
		for _, program := range programs {
			if _, err := exec.LookPath(program); err != nil && cfg.has(section) {
				return fmt.Errorf("no %s: run `scripts/setup.sh bench`, or choose sections without %s", program, section)
			}
		}
	}
	return nil
}

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

// worldSettings let a service live in the test internet. First calls have to make a container.
func (l *lab) worldSettings() ([]string, error) {
	return []string{
		"SANDBOXD_DOCKER_ISOLATED_DNS_SERVERS=" + l.world.DNSServers()[0].String(),
		"SANDBOXD_EGRESS_ALSO_PUBLIC=" + worldPublic.String(),
		"SANDBOXD_EGRESS_ASK_METADATA=false", "SANDBOXD_POOL_SIZE=0",
	}, nil
}

// Where a call may go: by name, which is through the guard, or anywhere, which is past it.
var (
	byName   = []string{originName}
	anywhere = []string{"*"}
)

// caFile is the authority of the test internet's origins, in the home.
const caFile = "ca.pem"

// travel lets the user of the warm sandbox use the network, and makes a container for each way.
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

// outgoing is a call that may reach the domains.
func outgoing(domains []string, argv ...string) types.Exec {
	return types.Exec{Argv: argv, Permissions: []string{"@network"}, AllowedDomains: domains}
}

// reach runs a command that may reach the domains.
func (s *service) reach(ctx context.Context, domains []string, argv ...string) (types.Output, error) {
	return s.call(ctx, boxID, outgoing(domains, argv...))
}

// refusals tells what a command did not reach.
func refusals(list []types.Refusal) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "; %s over %s: %s", r.Verdict, r.Via, r.Reason)
	}
	return b.String()
}

// removeRules takes a service's rules away. Its containers are gone.
func removeRules(name string) error {
	if os.Geteuid() != 0 {
		return nil // the service could not make any
	}
	return rules.RemoveTables(0, name+"-"+profileName)
}
