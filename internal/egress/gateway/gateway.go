// Package gateway is the network namespace that filtered containers are connected to, and from
// which no path leads out. It holds the host's ends of their interfaces and loopback, and nothing
// else. There is no bridge and no route to anywhere. Whatever a container sends, to any address, is
// delivered to the namespace itself, to the DNS filter, the guard or nobody. So no rule, forwarding
// or masquerading of the host's can let a packet out, and none is needed to keep it in.
//
// The namespace belongs to a container of ours, which runs Serve. It opens the sockets and hands
// them to the service, which has the interfaces put in; see Client. When the service ends the
// namespace stays, and with it the interfaces, for the next service, which discards what waits in
// the sockets: see Client.Restart.
//
// What the kernel does besides:
//   - A packet's source must be the address that is routed back to the interface it came from (rp_filter):
//     no container can pretend to be another.
//   - Sockets that listen at no specific address accept what was sent to any (AnyIP), and know to which: nothing is
//     translated, and no connection is tracked.
//   - How many questions and connections a second come from one address is bounded before any socket.
package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Version is raised when what a gateway does changes: a gateway of another version is replaced.
const Version = 1

// SharedDir is where a gateway finds the folder that it shares with the service.
const SharedDir = "/.daycare/shared"

// All sockets are handed over in one message, which holds 253 descriptors. So MaxPorts bounds
// Config.Ports, and maxUDP the sockets for DNS, of which there is one for each processor.
const (
	MaxPorts = 128
	maxUDP   = 64
)

// Config is what a gateway is made with.
type Config struct {
	// Version is the gateway's own; a gateway of another version refuses to start.
	Version int `json:"version"`
	// Address is where DNS is answered, at port 53.
	Address netip.Addr `json:"address"`
	// Ports are TCP ports besides 80 and 443 at which connections are accepted, whatever the
	// address.
	Ports []uint16 `json:"ports"`
	// Questions and Connections bound the datagrams to port 53 and the new TCP connections of one
	// container that are delivered in a second.
	Questions   int `json:"questions"`
	Connections int `json:"connections"`
	// Addresses is how many the network has, if it has more than fewAddresses; otherwise 0. Sources
	// beyond them would not be bounded.
	Addresses int `json:"addresses,omitempty"`
}

// fewAddresses is how many a network may have that Config.Addresses says nothing about: a gateway
// that was made before there were larger ones is as good as a new one.
const fewAddresses = 1 << 12

// AddressesOf returns Config.Addresses for a network.
func AddressesOf(subnet netip.Prefix) int {
	if n := 1 << (32 - subnet.Bits()); n > fewAddresses {
		return n
	}
	return 0
}

// Argument returns the configuration as one argument of the program. Gateways with the same
// argument are alike.
func (c Config) Argument() (string, error) {
	c.Version = Version
	if err := c.Validate(); err != nil {
		return "", err
	}
	text, err := json.Marshal(c)
	return string(text), err
}

// Parse reads what Argument returned.
func Parse(argument string) (Config, error) {
	var c Config
	if err := json.Unmarshal([]byte(argument), &c); err != nil {
		return Config{}, fmt.Errorf("cannot read the gateway's configuration: %w", err)
	}
	return c, c.Validate()
}

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if c.Version != Version {
		fault("version %d: this program is version %d", c.Version, Version)
	}
	if !c.Address.Is4() || !c.Address.IsPrivate() && !c.Address.IsGlobalUnicast() {
		fault("address %v: want an IPv4 address", c.Address)
	}
	if len(c.Ports) > MaxPorts {
		fault("%d ports: at most %d", len(c.Ports), MaxPorts)
	}
	for _, port := range c.Ports {
		if port == 0 || port == dnsPort || port == 80 || port == 443 {
			fault("port %d: it is reserved", port)
		}
	}
	if c.Questions < 1 || c.Connections < 1 {
		fault("bounds of %d questions and %d connections a second: want at least one", c.Questions,
			c.Connections)
	}
	if c.Addresses < 0 || c.Addresses > 1<<16 {
		fault("%d addresses: want at most %d", c.Addresses, 1<<16)
	}
	return errors.Join(faults...)
}

const (
	dnsPort = 53
	// socketName is the socket's name in the folder that the gateway shares with the service, and
	// faultName that of a file in which it says why it could not start.
	socketName = "gateway.sock"
	faultName  = "fault"
)

// Requests of the service. A message holds one, and each has one answer.
const (
	doOpen   = "open"   // asks for the sockets and the namespace
	doAttach = "attach" // connects a container whose interface is there
	doDetach = "detach" // removes a container's interface
	doList   = "list"   // asks which addresses are attached
	// doRefused asks for the socket on which the kernel tells what it refuses. A gateway of an
	// earlier program does not know it.
	doRefused = "refused"
)

// maxMessage bounds a message. A list of all addresses of a network fits.
const maxMessage = 64 << 10

type request struct {
	Do   string     `json:"do"`
	Addr netip.Addr `json:"addr,omitzero"`
	MAC  string     `json:"mac,omitempty"`
}

type answer struct {
	Error string `json:"error,omitempty"`
	// UDP says how many of the descriptors are UDP sockets; see sockets.files.
	UDP   int          `json:"udp,omitempty"`
	Addrs []netip.Addr `json:"addrs,omitempty"`
}

// LinkName returns the name of a container's interface in the namespace. It follows from the
// address, so there is at most one for each.
func LinkName(addr netip.Addr) string {
	b := addr.As4()
	return fmt.Sprintf("%s%02x%02x%02x%02x", linkPrefix, b[0], b[1], b[2], b[3])
}

const linkPrefix = "to"

// linkAddr reads a LinkName.
func linkAddr(name string) (netip.Addr, bool) {
	var b [4]byte
	if n, err := fmt.Sscanf(name, linkPrefix+"%02x%02x%02x%02x", &b[0], &b[1], &b[2],
		&b[3]); err != nil || n != len(b) {
		return netip.Addr{}, false
	}
	addr := netip.AddrFrom4(b)
	return addr, LinkName(addr) == name
}

// hardwareAddr parses the hardware address of an interface.
func hardwareAddr(text string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(text)
	if err == nil && (len(mac) != 6 || mac[0]&1 != 0) {
		err = fmt.Errorf("%s is no hardware address of an interface", text)
	}
	return mac, err
}
