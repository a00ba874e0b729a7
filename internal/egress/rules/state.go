package rules

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// A Binding says which interface of the host is the other end of a container's, and what may be
// sent from it: frames from any other hardware or IPv4 address are dropped.
type Binding struct {
	Veth string
	MAC  net.HardwareAddr
	Addr netip.Addr
}

// State is all that a ruleset depends on besides the Config.
type State struct {
	// Containers are the addresses of the containers. The bridge follows from the address.
	Containers []netip.Addr
	Bindings   []Binding
}

// validate returns all faults, joined.
func (s State) validate(c Config) error {
	var faults []error
	known := map[netip.Addr]bool{}
	for _, addr := range s.Containers {
		_, err := c.bridgeOf(addr)
		faults = append(faults, err)
		if known[addr] {
			faults = append(faults, fmt.Errorf("container %v: given twice", addr))
		}
		known[addr] = true
	}
	veths, bound := map[string]bool{}, map[netip.Addr]bool{}
	for _, item := range s.Bindings {
		faults = append(faults, item.validate(c))
		if !known[item.Addr] {
			faults = append(faults, fmt.Errorf("binding of %q: no container has %v", item.Veth,
				item.Addr))
		}
		if veths[item.Veth] || bound[item.Addr] {
			faults = append(faults, fmt.Errorf("binding of %q to %v: one of them is bound twice",
				item.Veth, item.Addr))
		}
		veths[item.Veth], bound[item.Addr] = true, true
	}
	return errors.Join(faults...)
}

func (b Binding) validate(cfg Config) error {
	// The kernel takes nearly any name; a name that would be read as a pattern or a path is no veth
	// of Docker.
	if b.Veth == "" || len(b.Veth) > maxInterfaceName || strings.ContainsAny(b.Veth, "/*:\x00 ") {
		return fmt.Errorf("binding of %q: not the name of an interface", b.Veth)
	}
	for _, bridge := range cfg.Bridges {
		if b.Veth == bridge.Name {
			return fmt.Errorf("binding of %q: that is the bridge", b.Veth)
		}
	}
	if len(b.MAC) != 6 || b.MAC[0]&1 != 0 {
		return fmt.Errorf("binding of %q: %v is no hardware address of an interface", b.Veth, b.MAC)
	}
	_, err := cfg.bridgeOf(b.Addr)
	return err
}

func (c Config) bridgeOf(addr netip.Addr) (Bridge, error) {
	for _, b := range c.Bridges {
		if isHost(b.Subnet, addr) && addr != b.Gateway {
			return b, nil
		}
	}
	return Bridge{}, fmt.Errorf("address %v: not one that a container of our bridges can have",
		addr)
}
