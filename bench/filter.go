package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/policy"
)

// filterWord is the argument that makes this program the DNS filter: its processor time is counted,
// so it is a process of its own. A filterPlan in JSON follows.
const filterWord = "run-filter"

// filterPlan is a DNS filter to run.
type filterPlan struct {
	Listen   netip.AddrPort
	Upstream string
	Public   netip.Prefix
	// Clients is how many clients are registered, from the address Asker on, each with all Names.
	Asker   netip.Addr
	Clients int
	Names   []string
}

// startFilter starts a filter whose clients may have all names.
func (l *lab) startFilter(ctx context.Context, names []string) (*peer, error) {
	addr, err := freePort(dnsFilterAddr)
	if err != nil {
		return nil, err
	}
	plan, err := json.Marshal(filterPlan{
		Listen: addr, Upstream: l.world.DNSServers()[0].String(), Public: worldPublic,
		Asker: dnsAsker, Clients: dnsClients, Names: names,
	})
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return l.startPeer(ctx, "filter", addr, self, filterWord, string(plan))
}

// runFilter runs a DNS filter as the service does, with a log of decisions, until the context ends.
func runFilter(ctx context.Context, text string) error {
	var plan filterPlan
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		return fmt.Errorf("cannot read which filter to run: %w", err)
	}
	known, err := plan.register()
	if err != nil {
		return err
	}
	bound, err := dnsfilter.Listen(ctx, plan.Listen)
	if err != nil {
		return err
	}
	server, err := dnsfilter.New(dnsfilter.Config{
		Sockets:          []dnsfilter.Socket{bound},
		Upstreams:        []string{plan.Upstream},
		Admits:           policy.Addresses{Extra: []netip.Prefix{plan.Public}}.Admits,
		Client:           known.at,
		QueriesPerSecond: 1e6, // the load is one client's
		Decided:          decided(decisions.New(10_000)),
		Log:              zerolog.Nop(),
	})
	if err != nil {
		return err
	}
	if err := server.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return server.Shutdown(context.WithoutCancel(ctx))
}

// register makes all clients.
func (plan filterPlan) register() (*clients, error) {
	domains, err := policy.ParseDomains(plan.Names)
	if err != nil {
		return nil, err
	}
	known := &clients{byAddr: map[netip.Addr]*dnsfilter.Client{}}
	for i, addr := 0, plan.Asker; i < plan.Clients; i, addr = i+1, addr.Next() {
		known.byAddr[addr] = &dnsfilter.Client{ID: fmt.Sprintf("container-%04d", i), User: fmt.Sprintf("user-%04d", i), Allows: domains.Allows}
	}
	return known, nil
}

// clients is a registry like the service's.
type clients struct {
	mu     sync.RWMutex
	byAddr map[netip.Addr]*dnsfilter.Client
}

func (c *clients) at(addr netip.Addr) *dnsfilter.Client {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byAddr[addr.Unmap()]
}

// decided adds to a log what the service would log.
func decided(log *decisions.Log) func(dnsfilter.Decision) {
	return func(d dnsfilter.Decision) {
		if d.Client == nil {
			return // the question belongs to no client
		}
		log.Add(decisions.Decision{
			Time: d.Time, User: d.Client.User, Container: d.Client.ID, Name: d.Name, Via: decisions.DNS,
			Type: dns.TypeToString[d.Type], Verdict: decisions.Verdict(d.Verdict), Reason: d.Reason,
		})
	}
}
