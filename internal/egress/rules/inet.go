package rules

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// renderInet renders what containers reach. Its chains follow a packet's way: source is for all
// that comes in, then to-host, leaving and to-member for what goes there.
//
// While the rules are replaced there is a moment in which the kernel has the new ones and their
// sets are still empty: so only what lets something through may depend on a set.
func renderInet(c Config, e elements) table {
	t := inetSets(c, e)
	t.sets = append(t.sets,
		set{name: bridgesSet, key: ifnameType, elements: bridgeNames(c)}, // for Claims alone
		set{name: gatewaysSet, key: memberType, elements: gateways(c)},
		set{name: "gateway-addresses", key: nftables.TypeIPAddr, elements: gatewayAddresses(c)},
		set{name: subnetsSet, key: nftables.TypeIPAddr, interval: true,
			elements: intervals(subnets(c))},
		set{name: questionsSet, key: nftables.TypeIPAddr, dynamic: true},
		set{name: connectionsSet, key: nftables.TypeIPAddr, dynamic: true})
	for _, b := range c.Bridges {
		t.sets = append(t.sets, set{
			name: reachableSet(b), key: nftables.TypeIPAddr, interval: true,
			elements: intervals(outside(slices.Concat(b.NonPublic, e.excluded))),
		})
	}
	// A little before filter (0): what is ours to drop is neither counted nor logged by others.
	const beforeFilter = -10
	t.chains = []chain{
		{
			// raw (-300), before connection tracking (-200): what no container of ours sent takes
			// no memory there.
			name: "source", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting,
			priority: -300,
			rules:    sourceRules(c),
		},
		{name: "member", rules: memberRules()},
		{
			name: "input", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookInput,
			priority: beforeFilter,
			rules:    c.eachBridge(func(b string) phrase { return rule(iif(b), to("to-host")) }),
		},
		{name: "to-host", rules: toHostRules(c)},
		{
			name: "forward", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward,
			priority: beforeFilter,
			rules: append(c.eachBridge(func(b string) phrase {
				return rule(iif(b), to("leaving"))
			}),
				c.eachBridge(func(b string) phrase { return rule(oif(b), to("to-member")) })...),
		},
		{name: "leaving", rules: leavingRules(c)},
		{name: "refused", rules: refuse()},
		{
			name: "output", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookOutput,
			priority: beforeFilter,
			rules:    c.eachBridge(func(b string) phrase { return rule(oif(b), to("to-member")) }),
		},
		{name: "to-member", rules: toMemberRules()},
	}
	return t
}

// eachBridge returns a rule for each.
func (c Config) eachBridge(say func(bridge string) phrase) []phrase {
	var rules []phrase
	for _, b := range c.Bridges {
		rules = append(rules, say(b.Name))
	}
	return rules
}

// sourceRules check the sender.
func sourceRules(c Config) []phrase {
	// A frame to a link-local group (01:80:c2:00:00:0x) passes the bridge by and would come in as
	// if the port itself were an interface of the host.
	rules := append([]phrase{rule(iifIn(portsSet), drop())},
		c.eachBridge(func(b string) phrase { return rule(iif(b), to("member")) })...)
	return append(rules,
		// From elsewhere: no containers are there, and the gateways' services are for containers
		// only.
		rule(iifNot("lo"), ipv4(), sourceIn(subnetsSet), drop()),
		rule(iifNot("lo"), ipv4(), destinationIn("gateway-addresses"), drop()))
}

func memberRules() []phrase {
	return []phrase{
		rule(unmarked(), drop()), // a port that is not bound
		rule(unmark()),
		rule(ipv4(), iifSourceIn(memberSet), accept()),
		rule(drop()), // IPv6, or a container that was removed
	}
}

// toHostRules allow all that containers may reach of the host.
func toHostRules(c Config) []phrase {
	var rules []phrase
	for _, number := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		dns := rule(ipv4(), iifDestinationIn(gatewaysSet), protocol(number), dport(dnsPort))
		// Before the socket, which all share: a flood costs its sender alone.
		rules = append(rules, rule(dns, meter(questionsSet, c.Questions), drop()),
			rule(dns, ctState(expr.CtStateBitNEW), tracked(connectionsSet, c.Connections), drop()),
			rule(dns, accept()))
	}
	return append(rules, refuse()...)
}

// leavingRules allow all that containers may reach beyond the host. They check every packet, not
// only the first of a flow, so a flow ends at once when its address is removed from a set.
func leavingRules(c Config) []phrase {
	rules := []phrase{}
	refused := refuse()
	for i := range refused { // other containers, on this bridge and others
		rules = append(rules, c.eachBridge(func(b string) phrase {
			return rule(oif(b), refused[i])
		})...)
	}
	for _, port := range c.ClosedPorts {
		rules = append(rules, rule(protocol(unix.IPPROTO_TCP), dport(port), refused[0]))
	}
	// What is refused here is never tracked: one container cannot fill the host's table. Only one
	// rule counts: a second would count the same flow once more.
	rules = append(rules, rule(ipv4(), ctState(expr.CtStateBitNEW),
		tracked(connectionsSet, c.Connections), to("refused")))
	for _, b := range c.Bridges {
		rules = append(rules, rule(iif(b.Name), ipv4(), iifSourceIn(memberSet),
			destinationIn(reachableSet(b)), accept()))
	}
	return append(rules, refused...)
}

// toMemberRules allow all that may reach containers, from the host and from beyond: what they asked
// for.
func toMemberRules() []phrase {
	answers := rule(ctReply(), ctState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED))
	return []phrase{
		rule(ipv4(), oifDestinationIn(memberSet), answers, accept()),
		rule(drop()),
	}
}

// refuse is for packets from a container's own address: nothing leaves, and the program fails at
// once instead of waiting. TCP is answered with a reset, since the kernel sends a host only a few
// ICMP messages a second.
func refuse() []phrase {
	const administratively = unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED
	return []phrase{
		rule(protocol(unix.IPPROTO_TCP), phrase{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
		{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: administratively}},
	}
}

func reachableSet(b Bridge) string { return "reachable-" + b.Name }
