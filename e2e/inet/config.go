package inet

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"

	"github.com/daycare-run/sandbox/internal/policy"
)

// Config says what a test internet is. Its zero value is 198.51.100.0/24, named e2e-inet.
type Config struct {
	// Name is that of the namespace and of the host's end of the veth pair: up to 15 letters,
	// digits and hyphens. What has this name, and no process alive to hold it, New removes.
	// Default: e2e-inet.
	Name string

	// Public is the IPv4 range that looks public, from /16 to /26. The host must have nothing in
	// it. Default: 198.51.100.0/24.
	Public netip.Prefix

	// Extra are further addresses, IPv4 or IPv6, such as 10.77.0.5 to stand for a private one and
	// 169.254.169.254 for metadata. The host routes them here, also out of a wider range that leads
	// elsewhere; it must not have them itself, or a route for one of them alone.
	Extra []netip.Addr

	// Pair is the /30 between the host, which has its address 1, and the namespace, which has 2.
	// Default: a free one of 198.18.0.0/15.
	Pair netip.Prefix
}

var (
	defaultPublic = netip.MustParsePrefix("198.51.100.0/24")
	defaultPairs  = netip.MustParsePrefix("198.18.0.0/15")

	names = regexp.MustCompile(`^[A-Za-z0-9-]{1,15}$`)
)

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "e2e-inet"
	}
	if c.Public == (netip.Prefix{}) {
		c.Public = defaultPublic
	}
	return c
}

// Validate returns all faults of the configuration, joined. It does not look at the host.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if !names.MatchString(c.Name) {
		fault("the name %q is not 1 to 15 letters, digits and hyphens", c.Name)
	}
	if p := c.Public; !p.Addr().Is4() || p != p.Masked() || p.Bits() < 16 || p.Bits() > 26 {
		fault("the public range %s is not an IPv4 range from /16 to /26", p)
	} else if unfit(p.Addr()) || unfit(last(p)) {
		fault("the public range %s is of the real internet, or cannot be routed", p)
	}
	if p := c.Pair; p != (netip.Prefix{}) &&
		(!p.Addr().Is4() || p != p.Masked() || p.Bits() != 30 || unfit(p.Addr())) {
		fault("the pair %s is not an IPv4 /30, or is of the real internet", p)
	}
	seen := map[netip.Addr]bool{}
	for _, addr := range c.Extra {
		switch {
		case unfit(addr):
			fault("the extra address %s is of the real internet, or cannot be routed", addr)
		case c.Public.Contains(addr) || seen[addr]:
			fault("the extra address %s is there already", addr)
		}
		seen[addr] = true
	}
	return errors.Join(faults...)
}

// unfit reports whether an address is of the real internet, or cannot be routed to a namespace.
func unfit(addr netip.Addr) bool {
	return !addr.IsValid() || addr.Zone() != "" || addr.Is4In6() ||
		(policy.Addresses{}).Admits(addr) ||
		addr.IsLoopback() || addr.IsMulticast() || addr.IsUnspecified() ||
		addr.Is6() && addr.IsLinkLocalUnicast()
}

// nth returns the n-th address of an IPv4 range.
func nth(p netip.Prefix, n int) netip.Addr {
	bytes := p.Addr().As4()
	for i := 3; i >= 0 && n > 0; i-- {
		n += int(bytes[i])
		bytes[i] = byte(n)
		n >>= 8
	}
	return netip.AddrFrom4(bytes)
}

// last returns the last address of an IPv4 range.
func last(p netip.Prefix) netip.Addr { return nth(p, 1<<(32-p.Bits())-1) }
