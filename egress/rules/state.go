package rules

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Mode is what a container may reach. A container that may reach nothing has no address and is none of ours.
type Mode uint8

// The modes. The zero value is none of them.
const (
	// Filtered may ask the DNS filter and talk to the guard, and to what Allow opened.
	Filtered Mode = iota + 1
	// Open may ask the DNS filter and is forwarded to what its bridge does not rule out.
	Open
)

func (m Mode) String() string {
	switch m {
	case Filtered:
		return "filtered"
	case Open:
		return "open"
	default:
		return fmt.Sprintf("mode %d", uint8(m))
	}
}

// A Container is one that has an address of ours. The bridge follows from the address.
type Container struct {
	Addr netip.Addr
	Mode Mode
}

// A Binding says which interface of the host is the other end of a container's, and what may be sent
// from it: frames from any other hardware or IPv4 address are dropped.
type Binding struct {
	Veth string
	MAC  net.HardwareAddr
	Addr netip.Addr
}

// State is all that a ruleset depends on besides the Config.
type State struct {
	Containers []Container
	Bindings   []Binding
}

// validate returns all faults, joined.
func (s State) validate(c Config) error {
	var faults []error
	known := map[netip.Addr]bool{}
	for _, item := range s.Containers {
		faults = append(faults, item.validate(c))
		if known[item.Addr] {
			faults = append(faults, fmt.Errorf("container %v: given twice", item.Addr))
		}
		known[item.Addr] = true
	}
	veths, bound := map[string]bool{}, map[netip.Addr]bool{}
	for _, item := range s.Bindings {
		faults = append(faults, item.validate(c))
		if !known[item.Addr] {
			faults = append(faults, fmt.Errorf("binding of %q: no container has %v", item.Veth, item.Addr))
		}
		if veths[item.Veth] || bound[item.Addr] {
			faults = append(faults, fmt.Errorf("binding of %q to %v: one of them is bound twice", item.Veth, item.Addr))
		}
		veths[item.Veth], bound[item.Addr] = true, true
	}
	return errors.Join(faults...)
}

func (c Container) validate(cfg Config) error {
	if c.Mode != Filtered && c.Mode != Open {
		return fmt.Errorf("container %v: %v is neither filtered nor open", c.Addr, c.Mode)
	}
	_, err := cfg.bridgeOf(c.Addr)
	return err
}

func (b Binding) validate(cfg Config) error {
	// The kernel takes nearly any name; what would be read as a pattern or a path is no veth of an engine.
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
	return Bridge{}, fmt.Errorf("address %v: not one that a container of our bridges can have", addr)
}
