// Package rules limits containers that may reach all of the internet to just that, with nftables:
// not the host, not each other, no private networks. Containers that may reach only some names are
// not on the bridge when their commands run; see egress/gateway. The package renders all rules in
// one place, puts them into the kernel in one transaction, changes them container by container, and
// puts them back when someone else changed them.
//
// Three tables of one name share the work. The bridge table binds each port to the addresses of its
// container and marks the frames that keep to them. The arp and inet tables take nothing from our
// bridges that has no mark; the inet table then decides where it may go. So a port that was not
// bound, and a container that was not added, reach nothing. All of it stays when the process ends.
//
// The rules are spoken over netlink, with google/nftables. Libraries of rule text, such as
// knftables, run the program nft: the service's image has no program but our own, and each change
// would take some 2 ms of a call's start, where an address is added and removed in 0.04 ms here.
package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rs/zerolog"
)

// Config says what the rules are about. All of it is fixed while a Table is open.
type Config struct {
	// Table is the name of our nftables tables: one each of the families inet, bridge and arp.
	Table string
	// Bridges are the networks that are ours. Their interfaces need not exist yet.
	Bridges []Bridge
	// Questions and Connections bound one container: packets to the DNS filter in a second, at port
	// 53 of its gateway, and flows that the kernel tracks at a time.
	Questions, Connections int
	// ClosedPorts are TCP ports that no container reaches, wherever.
	ClosedPorts []uint16
	// Log gets a line whenever Keep had to repair.
	Log zerolog.Logger
	// NetNS is a descriptor of the network namespace that the rules are for. Zero: the process's
	// own.
	NetNS int
}

// A Bridge is a network of containers.
type Bridge struct {
	// Name is the interface's, at most 15 bytes.
	Name string
	// Gateway is the host's address on it, and Subnet the network of that address. Only IPv4 is
	// ever let through.
	Gateway netip.Addr
	Subnet  netip.Prefix
	// NonPublic is what containers of this bridge may not reach, IPv4; prefixes may overlap and
	// those of IPv6 are left out. It may not be empty: a list that was forgotten would open
	// everything. The host's own addresses and our other bridges are never reached and need not be
	// in it.
	NonPublic []netip.Prefix
}

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if !isName(c.Table, 31) {
		fault("table %q: want a letter, then up to 30 letters, digits, - or _", c.Table)
	}
	if len(c.Bridges) == 0 {
		fault("no bridges")
	}
	for i, b := range c.Bridges {
		faults = append(faults, b.faults()...)
		for _, other := range c.Bridges[:i] {
			if b.Name == other.Name {
				fault("bridge %q: named twice", b.Name)
			}
			if b.Subnet.IsValid() && other.Subnet.IsValid() && b.Subnet.Overlaps(other.Subnet) {
				fault("bridge %q: subnet %v overlaps %v of %q", b.Name, b.Subnet, other.Subnet,
					other.Name)
			}
		}
	}
	if c.Questions < 1 || c.Connections < 1 {
		fault("bounds of %d questions and %d connections: want at least one", c.Questions,
			c.Connections)
	}
	if slices.Contains(c.ClosedPorts, 0) {
		fault("a closed port is 0")
	}
	return errors.Join(faults...)
}

func (b Bridge) faults() []error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("bridge %q: "+format, append([]any{b.Name}, args...)...))
	}
	if !isName(b.Name, maxInterfaceName) {
		fault("want a letter, then up to 14 letters, digits, - or _")
	}
	if !b.Subnet.IsValid() || !b.Subnet.Addr().Is4() || b.Subnet != b.Subnet.Masked() {
		fault("subnet %v: want an IPv4 network without host bits", b.Subnet)
	} else if !isHost(b.Subnet, b.Gateway) {
		fault("gateway %v: want a host's address in %v", b.Gateway, b.Subnet)
	}
	four := 0
	for _, p := range b.NonPublic {
		if !p.IsValid() {
			fault("non-public: a prefix is not valid")
		} else if p.Addr().Is4() {
			four++
		}
	}
	if four == 0 {
		fault("non-public: no IPv4 prefix: containers would reach everything")
	}
	return faults
}

// dnsPort is where the DNS filter answers on each gateway.
const dnsPort = 53

const maxInterfaceName = 15 // IFNAMSIZ with its terminator is 16

// isName reports whether both the kernel and nft's own grammar take a name without quoting.
func isName(s string, limit int) bool {
	letter := func(r rune) bool { return r|0x20 >= 'a' && r|0x20 <= 'z' }
	for i, r := range s {
		if !letter(r) && (i == 0 || !strings.ContainsRune("0123456789-_", r)) {
			return false
		}
	}
	return s != "" && len(s) <= limit
}

// isHost reports whether an address is a host's: neither the network's own nor its broadcast
// address.
func isHost(subnet netip.Prefix, addr netip.Addr) bool {
	return addr.Is4() && subnet.Contains(addr) && addr != subnet.Addr() && addr != last(subnet)
}
