package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// askLimit is how long a resolver may take.
const askLimit = 2 * time.Second

// RulesUsable reports whether the service can restrict containers to names. probe asks the kernel;
// run without root, it would say nothing about the service's rights.
func RulesUsable(root, weaker bool, probe func() error) Check {
	return Check{"nftables", func(context.Context) Finding {
		if !root {
			return skipped("only root may ask the kernel for its rules")
		}
		if err := probe(); err != nil {
			return accepted(weaker,
				wrong("give the service CAP_NET_ADMIN in the host's network namespace, and the kernel nf_tables, nft_limit and nft_connlimit; or set docker.enableWeakerNestedSandbox, and calls have either no network or all of it",
					"%v", err))
		}
		return ok("rules can be made")
	}}
}

// OwnAddresses returns the check that says which public addresses count as the host's own although
// the host does not hold them. named are those that the operator names; ask asks the cloud now, and
// is nil if the operator does not want that. What the service was told is in its log.
func OwnAddresses(named []string, ask func(context.Context) ([]string, error)) Check {
	return Check{"own addresses", func(ctx context.Context) Finding {
		var says []string
		if len(named) > 0 {
			says = append(says, strings.Join(named, ", ")+" by egress.ownAddresses")
		}
		if ask == nil {
			says = append(says, "the cloud is not asked (egress.askMetadata)")
		} else if told, err := ask(ctx); len(told) > 0 {
			says = append(says, strings.Join(told, ", ")+" by the cloud's metadata now, which the service "+
				"asks when it starts (its log says what it was told)")
		} else if err != nil {
			says = append(says, "no cloud's metadata answers now")
		} else {
			says = append(says, "the cloud's metadata names none")
		}
		return ok("besides those that the host holds: %s", strings.Join(says, "; "))
	}}
}

// Forwarding reports whether the kernel forwards packets, which calls with "*" need.
func Forwarding(sysctl sysctl) Check {
	return Check{"forwarding", func(context.Context) Finding {
		on, err := sysctl("net.ipv4.ip_forward")
		switch {
		case err != nil:
			return skipped("%v", err)
		case on != 1:
			return warning(
				"sysctl -w net.ipv4.ip_forward=1; Docker does so when it starts, unless its daemon.json says \"ip-forward\": false",
				"the kernel forwards nothing: calls with \"*\" reach nothing")
		default:
			return ok("the kernel forwards packets of containers")
		}
	}}
}

// Upstreams are the resolvers of one profile, as the settings name them.
type Upstreams struct {
	Key     string // of the setting
	Servers []string
	Err     error // why there are none
}

// Resolvers returns a check for each resolver. A resolver that is down is a fault if its profile
// has no other that answers. The resolvers are asked for name; any answer, also a refusal, shows
// that a resolver is up.
func (u Upstreams) Resolvers(name string,
	ask func(ctx context.Context, server, name string) (rcode string, err error)) []Check {
	if u.Err != nil {
		return []Check{{"resolvers of " + u.Key, func(context.Context) Finding {
			return wrong("set "+u.Key, "%v", u.Err)
		}}}
	}
	answers := func(ctx context.Context, server string) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		rcode, err := ask(ctx, server, name)
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("no answer within %v", askLimit)
		}
		return rcode, err
	}
	var checks []Check
	for i, server := range u.Servers {
		checks = append(checks, Check{"resolver " + server, func(ctx context.Context) Finding {
			rcode, err := answers(ctx, server)
			remedy := "check that the host reaches it, or name another one in " + u.Key
			switch {
			case err == nil && (rcode == "NOERROR" || rcode == "NXDOMAIN"):
				return ok("answers, for %s", u.Key)
			case err == nil:
				return warning(remedy, "answers %s when asked for %s", rcode, name)
			}
			for j, other := range u.Servers {
				if j == i {
					continue
				}
				if _, fails := answers(ctx, other); fails == nil {
					return warning(remedy, "%v; %s answers instead", err, other)
				}
			}
			return wrong(remedy,
				"%v, and %s names no other that answers: names that calls may reach do not resolve",
				err, u.Key)
		}})
	}
	return checks
}

// NameserverPort reports whether the service can answer DNS at the gateways of its networks. try
// takes port 53 of an address that nothing else uses, by UDP and TCP, and gives it back: that fails
// if another program has the port on every address.
func NameserverPort(try func() error) Check {
	return Check{"port 53", func(context.Context) Finding {
		err := try()
		switch {
		case err == nil:
			return ok("free at the networks' gateways")
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			return skipped("only root may try")
		case errors.Is(err, syscall.EADDRINUSE):
			return wrong(
				"find it with `ss -lnptu sport = :53`, and let it listen on addresses of its own only (dnsmasq: bind-interfaces; bind9: listen-on)",
				"another program has port 53 on every address, so the service cannot answer at its networks' gateways")
		default:
			return skipped("%v", err)
		}
	}}
}
