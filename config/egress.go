package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

// Egress says what containers can reach over the network, and bounds what that costs.
type Egress struct {
	// Name begins the names of what the service makes on the host: the networks <name>-isolated and
	// <name>-local, the nftables tables of the same names, and the bridges <name>-iso and
	// <name>-loc. 1 to 11 of a-z, 0-9 and "-", a letter first and no "-" last. Default daycare.
	Name string `json:"name" env:"NAME" reload:"restart"`

	// Subnets are private IPv4 prefixes from which the networks' own subnets are taken, of SubnetBits
	// each or all of a smaller range: the first ones that collide with nothing on the host. At least
	// one; each /23 or larger, and no two overlap. Default 10.213.0.0/16, 172.29.0.0/16 and
	// 192.168.224.0/20.
	Subnets []string `json:"subnets" env:"SUBNETS" reload:"restart"`

	// SubnetBits is the prefix length of a network that is made: 22 has room for 1,021 containers,
	// 16 for 65,533, of which at most 1,023 may reach everything: a bridge has so many ports. A
	// network that exists keeps its own. From 16 to 24. Default 22.
	SubnetBits int `json:"subnetBits" env:"SUBNET_BITS" reload:"restart"`

	// ExtraPorts are TCP ports beside 80 and 443 that filtered calls may reach at their allowed
	// names. From 1 to 65535, each once, at most 128. Unless 25 is one of them, no call reaches
	// port 25, not even with "*". Default none.
	ExtraPorts []int `json:"extraPorts" env:"EXTRA_PORTS" reload:"restart"`

	// AllowGlobalWildcard lets a call name "*", which is all of the internet. Default true.
	AllowGlobalWildcard bool `json:"allowGlobalWildcard" env:"ALLOW_GLOBAL_WILDCARD" reload:"live"`

	// Presets are further values of packageManagers beside the built-in ones: a name of up to 32 of
	// a-z, 0-9 and "-", a letter first, and the domain patterns that it stands for, at least one.
	// The patterns themselves are not checked here. The variable holds a JSON object. Default none.
	Presets map[string][]string `json:"presets" env:"PRESETS" reload:"live"`

	// AlsoPublic are IPv4 prefixes that the profile "isolated" reaches as if they were public, such
	// as that of an in-house mirror. Each /8 or smaller, and none with loopback, link-local (where
	// clouds have their metadata), multicast or reserved addresses. Default none.
	AlsoPublic []string `json:"alsoPublic" env:"ALSO_PUBLIC" reload:"restart"`

	// CAFile is a file with certificates in PEM, such as that of an in-house mirror, that programs
	// in containers trust beside those of the image. It is read at start and at SIGHUP, and may be
	// the host's own bundle. Default "": none.
	CAFile string `json:"caFile" env:"CA_FILE" reload:"live"`

	// OwnAddresses are public IPv4 addresses of the host that it does not hold itself, because a
	// cloud or a router translates them. No call reaches them, just as none reaches the addresses
	// that the host holds. Each once. Default none.
	OwnAddresses []string `json:"ownAddresses" env:"OWN_ADDRESSES" reload:"restart"`

	// AskMetadata lets the service ask for such addresses, when it starts, at the metadata server
	// that clouds have at 169.254.169.254; if nobody answers, again for some minutes. Default true.
	AskMetadata bool `json:"askMetadata" env:"ASK_METADATA" reload:"restart"`

	// QueriesPerSecond bounds the DNS queries of one container. From 1 to 1000000. Default 200.
	QueriesPerSecond int `json:"queriesPerSecond" env:"QUERIES_PER_SECOND" reload:"restart"`

	// MaxConnections bounds, for a filtered container, the connections that it has open to ports 80
	// and 443 and those that it opens per second; for any other, the flows that the host tracks for
	// it. From 1 to 65536. Default 4096.
	MaxConnections int `json:"maxConnections" env:"MAX_CONNECTIONS" reload:"restart"`

	// MaxUserConnections bounds the same over all containers of one user. From 1 to 1000000. The
	// service's descriptors bound it further: one user gets a quarter of those for connections, so
	// that some are left for others. Default 8192.
	MaxUserConnections int `json:"maxUserConnections" env:"MAX_USER_CONNECTIONS" reload:"restart"`

	// MaxDomains bounds the number of patterns that a call names, including those of its presets.
	// From 1 to 10000. Default 256.
	MaxDomains int `json:"maxDomains" env:"MAX_DOMAINS" reload:"live"`

	// DecisionLog is how many of the latest decisions are kept for reading. From 100 to 1000000.
	// Default 10000.
	DecisionLog int `json:"decisionLog" env:"DECISION_LOG" reload:"restart"`
}

var (
	// namePattern leaves room for "-iso" in the 15 bytes of an interface's name.
	namePattern   = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,9}[a-z0-9])?$`)
	presetPattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

	// privateRanges are the ranges of RFC 1918 and of RFC 6598.
	privateRanges = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")

	// closedRanges are this network, loopback, link-local, and multicast and reserved addresses.
	closedRanges = prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

func (e Egress) check(f *faults) {
	if !namePattern.MatchString(e.Name) {
		f.Add("egress.name",
			`%s is no name for networks: want 1 to 11 of a-z, 0-9 and "-", a letter first and no "-" last`,
			strictjson.Quote(e.Name))
	}
	e.checkSubnets(f)
	e.checkPorts(f)
	e.checkPresets(f)
	f.each("egress.alsoPublic", e.AlsoPublic, checkAlsoPublic)
	f.each("egress.ownAddresses", e.OwnAddresses, checkAddress)
	f.between("egress.subnetBits", int64(e.SubnetBits), 16, 24)
	f.between("egress.queriesPerSecond", int64(e.QueriesPerSecond), 1, 1_000_000)
	f.between("egress.maxConnections", int64(e.MaxConnections), 1, 65536)
	f.between("egress.maxUserConnections", int64(e.MaxUserConnections), 1, 1_000_000)
	f.between("egress.maxDomains", int64(e.MaxDomains), 1, 10_000)
	f.between("egress.decisionLog", int64(e.DecisionLog), 100, 1_000_000)
}

func (e Egress) checkSubnets(f *faults) {
	if len(e.Subnets) == 0 {
		f.Add("egress.subnets",
			"[] leaves the networks without addresses: want at least one prefix")
	}
	var taken []netip.Prefix
	f.each("egress.subnets", e.Subnets, func(text string) error {
		prefix, err := parsePrefix(text)
		if err != nil {
			return err
		}
		within := func(private netip.Prefix) bool {
			return private.Bits() <= prefix.Bits() && private.Overlaps(prefix)
		}
		switch i := slices.IndexFunc(taken, prefix.Overlaps); {
		case prefix.Bits() > 23:
			return errors.New("is too small for two networks of /24: want /23 or larger")
		case !slices.ContainsFunc(privateRanges, within):
			return errors.New(
				"is not private: want one in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10")
		case i >= 0:
			return fmt.Errorf("overlaps %s", taken[i])
		}
		taken = append(taken, prefix)
		return nil
	})
}

// maxExtraPorts is how many listening sockets a gateway can hand over.
const maxExtraPorts = 128

func (e Egress) checkPorts(f *faults) {
	if len(e.ExtraPorts) > maxExtraPorts {
		f.Add("egress.extraPorts", "%d ports: at most %d", len(e.ExtraPorts), maxExtraPorts)
	}
	seen := make(map[int]bool)
	for i, port := range e.ExtraPorts {
		key := fmt.Sprintf("egress.extraPorts[%d]", i)
		switch {
		case port < 1 || port > 65535:
			f.between(key, int64(port), 1, 65535)
		case port == 53 || port == 80 || port == 443:
			f.Add(key, "%d is refused: 53, 80 and 443 have rules of their own", port)
		case seen[port]:
			f.Add(key, "%d is given more than once", port)
		}
		seen[port] = true
	}
}

// checkPresets does not check the patterns, which package policy does.
func (e Egress) checkPresets(f *faults) {
	for _, name := range slices.Sorted(maps.Keys(e.Presets)) {
		key := strictjson.Path("egress.presets", name)
		if !presetPattern.MatchString(name) {
			f.Add(key, `%s is no name of a preset: want 1 to 32 of a-z, 0-9 and "-", a letter first`,
				strictjson.Quote(name))
		}
		if len(e.Presets[name]) == 0 {
			f.Add(key, "[] names no domain")
		}
		f.each(key, e.Presets[name], func(pattern string) error {
			if pattern == "" {
				return errors.New("names no domain")
			}
			return nil
		})
	}
}

func checkAlsoPublic(text string) error {
	prefix, err := parsePrefix(text)
	if err != nil {
		return err
	}
	if prefix.Bits() < 8 {
		return errors.New("is too large: want /8 or smaller")
	}
	if i := slices.IndexFunc(closedRanges, prefix.Overlaps); i >= 0 {
		return fmt.Errorf("overlaps %s, which no container may reach", closedRanges[i])
	}
	return nil
}

func checkAddress(text string) error {
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() || addr.String() != text {
		return errors.New("is no IPv4 address: want one such as 203.0.113.7")
	}
	return nil
}

// parsePrefix reads an IPv4 prefix that is written in its one canonical form.
func parsePrefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil || !prefix.Addr().Is4():
		return netip.Prefix{}, errors.New("is no IPv4 prefix: want one such as 10.20.0.0/16")
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Errorf("has bits beyond its length: write %s", prefix.Masked())
	}
	return prefix, nil
}
