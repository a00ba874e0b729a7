package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"

	"github.com/daycare-run/sandbox/internal/strictjson"
)

var (
	tagPattern     = regexp.MustCompile(`^(?:` + reference.TagRegexp.String() + `)$`)
	runtimePattern = regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`)
	userPattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)
	labelPattern   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// capabilities are the capabilities of linux/capability.h, by number.
var capabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
	"SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
	"IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
	"SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
	"LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
	"WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
	"ALL",
}

// Reference returns the image in Docker's form: image:tag, or image@digest.
func (d Docker) Reference() string {
	if strings.Contains(d.Image, "@") {
		return d.Image
	}
	return d.Image + ":" + d.Tag
}

// check finds faults, except with SocketPath, which checkPaths checks.
func (d Docker) check(f *faults) {
	if !d.Enabled {
		f.Add("docker.enabled", "false is refused: this service is the Docker mode")
	}
	if err := checkImage(d.Image); err != nil {
		f.Add("docker.image", "%s %s", strictjson.Quote(d.Image), err)
	}
	if !tagPattern.MatchString(d.Tag) {
		f.Add("docker.tag", "%s is no tag: want up to 128 letters, digits, _, . and -",
			strictjson.Quote(d.Tag))
	}
	if !runtimePattern.MatchString(d.Runtime) {
		f.Add("docker.runtime", "%s is no name of a runtime: want letters, digits, _, . and -",
			strictjson.Quote(d.Runtime))
	}
	f.each("docker.capAdd", d.CapAdd, checkCapability)
	f.each("docker.capDrop", d.CapDrop, checkCapability)
	d.checkNamespaces(f)
	f.each("docker.allowLocalNetworkingForUsers", d.AllowLocalNetworkingForUsers, checkUser)
	if len(d.IsolatedDNSServers) == 0 {
		f.Add("docker.isolatedDnsServers",
			"[] names no resolver, and isolated users never get the host's own")
	}
	f.each("docker.isolatedDnsServers", d.IsolatedDNSServers, checkResolver)
	f.each("docker.localDnsServers", d.LocalDNSServers, checkResolver)
}

// checkNamespaces refuses capabilities with which a command that can make mounts could remove the
// mounts that hide something from it.
func (d Docker) checkNamespaces(f *faults) {
	if !d.AllowUserNamespaces {
		return
	}
	for _, name := range d.CapAdd {
		switch canonical(name) {
		case "SYS_ADMIN", "ALL":
			f.Add("docker.allowUserNamespaces",
				"true together with %s in docker.capAdd would let commands unmount what hides files from them: leave one out",
				strictjson.Quote(name))
		}
	}
}

// each finds the faults with the items of a list.
func (f *faults) each(key string, items []string, check func(string) error) {
	for i, item := range items {
		if err := check(item); err != nil {
			f.Add(fmt.Sprintf("%s[%d]", key, i), "%s %s", strictjson.Quote(item), err)
		}
	}
}

func checkImage(image string) error {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return fmt.Errorf("is no image: %w", err)
	}
	if _, ok := named.(reference.Tagged); ok {
		return errors.New("has a tag, which belongs in docker.tag")
	}
	return nil
}

func checkCapability(name string) error {
	bare := canonical(name)
	if !slices.Contains(capabilities, bare) {
		return fmt.Errorf("is no Linux capability%s", strictjson.Nearest(bare, capabilities))
	}
	return nil
}

// canonical returns the name of a capability in upper case and without CAP_.
func canonical(capability string) string {
	return strings.TrimPrefix(strings.ToUpper(capability), "CAP_")
}

func canonicalize(list []string) {
	for i := range list {
		list[i] = canonical(list[i])
	}
}

func checkUser(id string) error {
	if !userPattern.MatchString(id) || strings.Contains(id, "..") {
		return errors.New(
			`is no user id: want up to 63 of a-z, 0-9, "_", "." and "-", a letter or digit first, and no ".."`)
	}
	return nil
}

func checkResolver(server string) error {
	rest, tls := strings.CutPrefix(server, "tls://")
	// A bare IPv6 address has colons of its own, so it is tried before a port is looked for.
	if addr, err := netip.ParseAddr(rest); err == nil {
		return checkAddr(addr)
	}
	if pair, err := netip.ParseAddrPort(rest); err == nil {
		if pair.Port() == 0 {
			return errPort
		}
		return checkAddr(pair.Addr())
	}
	host, port, found := strings.Cut(rest, ":")
	if !tls || !isHost(host) {
		return errResolver
	}
	if n, err := strconv.ParseUint(port, 10, 16); found && (err != nil || n == 0) {
		return errPort
	}
	return nil
}

func checkAddr(addr netip.Addr) error {
	if addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
		return errors.New("cannot be the address of a resolver")
	}
	return nil
}

// isHost reports whether name is a host name. Its last label has a letter; without one it would be
// a mistyped address.
func isHost(name string) bool {
	labels := strings.Split(strings.TrimSuffix(strings.ToLower(name), "."), ".")
	for _, label := range labels {
		if !labelPattern.MatchString(label) {
			return false
		}
	}
	return len(name) <= 253 && strings.ContainsAny(labels[len(labels)-1],
		"abcdefghijklmnopqrstuvwxyz")
}

var (
	errResolver = errors.New(
		"is no resolver: want address, address:port, [IPv6]:port or tls://host[:port]")
	errPort = errors.New("has no port from 1 to 65535 after the colon")
)
