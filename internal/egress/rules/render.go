package rules

import (
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// boundMark is the bit of a packet's mark that says that the port it came from may send it. It is
// set in the bridge table and cleared as soon as it has been read, so that no routing rule sees it.
// A container cannot set it: the mark of what crosses a veth is zero. Neither Kubernetes, Tailscale
// nor Docker's swarm uses this bit.
const boundMark = 0x0400_0000

// Sets that change while the rules stay. Each table has sets of its own.
const (
	memberSet = "members" // iifname . ip saddr
	portsSet  = "ports"   // iifname of every port that is bound
	boundSet  = "bound"   // iifname . ether saddr . ip saddr
)

// Sets that stay as they are. Claims knows a table by them.
const (
	bridgesSet  = "bridges"
	gatewaysSet = "gateways" // iifname . ip daddr
	subnetsSet  = "subnets"
)

// Sets that the kernel fills, by source address: how much each has asked, and how many connections
// it has.
const (
	questionsSet   = "questions"
	connectionsSet = "connections"
)

// A chain with a hook gets its packets from the kernel; one without gets them from other chains.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	rules    []phrase
}

type set struct {
	name     string
	key      nftables.SetDatatype
	interval bool
	dynamic  bool // the kernel fills it
	elements []nftables.SetElement
}

// table is one table as it should be; ruleset is all of them.
type table struct {
	family nftables.TableFamily
	name   string
	sets   []set
	chains []chain
}

type ruleset []table

// render is the one place that knows the rules. Priorities: a drop is final in any chain, an accept
// only ends our own chain. So Docker's rules can forbid more but never allow more, and the order
// among filters matters little. What does matter is said at each chain.
func render(c Config, e elements) ruleset {
	return ruleset{renderBridge(c, e), renderARP(c, e), renderInet(c, e)}
}

func rule(parts ...phrase) phrase {
	var all phrase
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

// renderBridge binds ports. This kernel may have no meta ibrname, so the table cannot tell our
// bridges' ports from others'; Bind tells it which are ours. Frames of other ports pass as they
// are: they may be from another Table's ports, which has marked them.
func renderBridge(c Config, e elements) table {
	t := bridgeSets(c, e)
	t.chains = []chain{
		{
			// Before br_netfilter (0), which runs the inet table's prerouting from inside of this
			// hook, and before the bridge learns where a hardware address is.
			name: "from-port", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting,
			priority: -250,
			rules:    []phrase{rule(iifIn(portsSet), to("bound-port"))},
		},
		{name: "bound-port", rules: []phrase{
			rule(etherType(unix.ETH_P_IP), boundBy(boundSet, etherSource, ipSource), mark(),
				accept()),
			// ARP names its sender twice; both must be the container.
			rule(etherType(unix.ETH_P_ARP), arpForIPv4(),
				boundBy(boundSet, etherSource, arpSenderIP),
				boundBy(boundSet, arpSenderMAC, arpSenderIP), mark(), accept()),
			rule(drop()), // another source, IPv6, a VLAN tag, anything else
		}},
		{
			// From port to port: containers have no neighbours. This does not depend on
			// br_netfilter or on icc.
			name: "between-ports", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward,
			priority: -250,
			rules:    []phrase{rule(iifIn(portsSet), drop()), rule(oifIn(portsSet), drop())},
		},
	}
	return t
}

// renderARP lets containers ask only for their gateway: the host would answer for all its
// addresses.
func renderARP(c Config, e elements) table {
	rules := []phrase{rule(iifIn(portsSet), drop())}
	for _, b := range c.Bridges {
		rules = append(rules, rule(iif(b.Name), unmarked(), drop()),
			rule(iif(b.Name), arpForIPv4(), arpTarget(b.Gateway), accept()),
			rule(iif(b.Name), drop()))
	}
	t := arpSets(c, e)
	input := nftables.ChainHookRef(0) // NF_ARP_IN; the library's name for input is that of other families
	t.chains = []chain{{name: "to-host", kind: nftables.ChainTypeFilter, hook: input, rules: rules}}
	return t
}
