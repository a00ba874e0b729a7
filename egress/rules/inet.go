package rules

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// renderInet decides by the container's mode. Its chains name a packet's way: source is asked of all that
// comes in, then to-host, leaving and to-member of what goes there.
func renderInet(c Config, e elements) table {
	t := inetSets(c, e)
	t.sets = append(t.sets,
		set{name: "bridges", key: ifnameType, elements: bridgeNames(c)},
		set{name: "gateways", key: memberType, elements: gateways(c)},
		set{name: "gateway-addresses", key: nftables.TypeIPAddr, elements: gatewayAddresses(c)},
		set{name: "subnets", key: nftables.TypeIPAddr, interval: true, elements: intervals(subnets(c))})
	for _, b := range c.Bridges {
		t.sets = append(t.sets, set{
			name: nonPublicSet(b), key: nftables.TypeIPAddr, interval: true, elements: intervals(b.NonPublic),
		})
	}
	// A little before filter (0): what is ours to drop is neither counted nor logged by others.
	const beforeFilter = -10
	t.chains = []chain{
		{
			// raw (-300), before connection tracking (-200): what nobody of ours sent takes no memory there.
			name: "source", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: -300,
			rules: sourceRules(),
		},
		{name: "member", rules: memberRules()},
		{
			// Before Docker's own destination NAT (-100): the first to translate a flow decides, and a port that
			// Docker publishes must not catch what belongs to the guard.
			name: "redirect", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPrerouting, priority: -110,
			rules: redirectRules(c),
		},
		{
			name: "input", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookInput, priority: beforeFilter,
			rules: []phrase{rule(iifIn("bridges"), to("to-host"))},
		},
		{name: "to-host", rules: toHostRules(c)},
		{
			name: "forward", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: beforeFilter,
			rules: []phrase{rule(iifIn("bridges"), to("leaving")), rule(oifIn("bridges"), to("to-member"))},
		},
		{name: "leaving", rules: leavingRules(c)},
		{
			name: "output", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookOutput, priority: beforeFilter,
			rules: []phrase{rule(oifIn("bridges"), to("to-member"))},
		},
		{name: "to-member", rules: toMemberRules()},
	}
	return t
}

// sourceRules ask who sent it.
func sourceRules() []phrase {
	return []phrase{
		// A frame to a link-local group (01:80:c2:00:00:0x) passes the bridge by and would come in as if the
		// port itself were an interface of the host.
		rule(iifIn(portsSet), drop()),
		rule(iifIn("bridges"), to("member")),
		// From elsewhere: nobody there is a container, and the gateways' services are for containers.
		rule(iifNot("lo"), ipv4(), sourceIn("subnets"), drop()),
		rule(iifNot("lo"), ipv4(), destinationIn("gateway-addresses"), drop()),
	}
}

func memberRules() []phrase {
	return []phrase{
		rule(unmarked(), drop()), // a port that nobody bound
		rule(unmark()),
		rule(ipv4(), iifSourceIn(filteredSet), accept()),
		rule(ipv4(), iifSourceIn(openSet), accept()),
		rule(drop()), // IPv6, or a container that was removed
	}
}

func redirectRules(c Config) []phrase {
	var rules []phrase
	for _, b := range c.Bridges {
		if c.DNSPort != 53 {
			for _, number := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
				rules = append(rules, rule(iif(b.Name), ipv4(), iifDestinationIn("gateways"), protocol(number), dport(53),
					redirectTo(b.Gateway, c.DNSPort)))
			}
		}
		for _, door := range c.doors() {
			rules = append(rules, rule(iif(b.Name), ipv4(), iifSourceIn(filteredSet), protocol(unix.IPPROTO_TCP),
				dport(door.from), redirectTo(b.Gateway, door.to)))
		}
	}
	return rules
}

// toHostRules are all that containers reach of the host.
func toHostRules(c Config) []phrase {
	var rules []phrase
	for _, number := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
		dns := rule(ipv4(), iifDestinationIn("gateways"), protocol(number), dport(c.DNSPort))
		if c.DNSPort != 53 {
			dns = rule(dns, ctRedirected())
		}
		rules = append(rules, rule(dns, accept()))
	}
	for _, door := range c.doors() {
		// Who dials the guard's port itself would give it no destination to decide on.
		rules = append(rules, rule(ipv4(), iifSourceIn(filteredSet), iifDestinationIn("gateways"),
			protocol(unix.IPPROTO_TCP), dport(door.to), ctRedirected(), accept()))
	}
	return append(rules, refuse()...)
}

// leavingRules are all that containers reach beyond the host. They ask every packet, not only the first
// of a flow, so what is taken out of a set ends at once.
func leavingRules(c Config) []phrase {
	rules := []phrase{}
	refused := refuse()
	for i := range refused {
		rules = append(rules, rule(oifIn("bridges"), refused[i])) // other containers, here and there
	}
	flow := rule(ipv4(), iifSourceIn(filteredSet), protocol(unix.IPPROTO_TCP), flowIn(flowsSet))
	rules = append(rules,
		rule(flow, ctState(expr.CtStateBitESTABLISHED), flowIn(flowsSet), renewFlow(flowsSet, flowIdle), accept()),
		rule(flow, accept()))
	for _, b := range c.Bridges {
		rules = append(rules, rule(iif(b.Name), ipv4(), iifSourceIn(openSet), destinationNotIn(nonPublicSet(b)), accept()))
	}
	return append(rules, refused...)
}

// toMemberRules are all that reaches containers, from the host and from beyond: what they asked for.
func toMemberRules() []phrase {
	answers := rule(ctReply(), ctState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED))
	return []phrase{
		rule(ipv4(), oifDestinationIn(filteredSet), answers, accept()),
		rule(ipv4(), oifDestinationIn(openSet), answers, accept()),
		rule(drop()),
	}
}

// refuse is for containers that are who they say: nothing leaves, and the program fails at once instead
// of waiting. TCP is told with a reset, since the kernel sends a host only a few ICMP messages a second.
func refuse() []phrase {
	const administratively = unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED
	return []phrase{
		rule(protocol(unix.IPPROTO_TCP), phrase{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
		{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: administratively}},
	}
}

// A door is a port that filtered containers dial and the guard's port behind it.
type door struct{ from, to uint16 }

func (c Config) doors() []door { return []door{{443, c.TLSPort}, {80, c.HTTPPort}} }

func nonPublicSet(b Bridge) string { return "non-public-" + b.Name }
