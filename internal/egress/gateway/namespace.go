package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sysctls returns the settings that the namespace must have been made with: a container cannot
// write to its own /proc/sys, and the kernel gives a new namespace what the host has set for
// itself.
func Sysctls() map[string]string {
	all := map[string]string{
		"net.ipv4.ip_forward": "0",
		// Delivering what is for any address must not make every address answer to ping.
		"net.ipv4.icmp_echo_ignore_all":      "1",
		"net.ipv6.conf.all.disable_ipv6":     "1",
		"net.ipv6.conf.default.disable_ipv6": "1",
	}
	for name, value := range map[string]string{
		"rp_filter": "1", "accept_local": "0", // a packet with a false source is dropped
		"arp_accept": "0",                    // nothing is learned from containers
		"arp_ignore": "0", "arp_filter": "0", // containers may ask for the gateway, whose address is loopback's
		"log_martians": "0", // containers cannot fill the host's log
	} {
		all["net.ipv4.conf.all."+name] = value
		all["net.ipv4.conf.default."+name] = value
	}
	return all
}

// namespace is the network namespace that the program is in.
type namespace struct {
	handle *netlink.Handle
}

// closeNamespace checks and configures the namespace, before any interface is in it.
func closeNamespace(address netip.Addr) (*namespace, error) {
	for name, want := range Sysctls() {
		got, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
		if err != nil {
			return nil, fmt.Errorf("cannot check that %s is %s: %w", name, want, err)
		}
		if strings.TrimSpace(string(got)) != want {
			return nil, fmt.Errorf("%s is %s, not %s", name, strings.TrimSpace(string(got)), want)
		}
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the kernel for interfaces: %w", err)
	}
	n := &namespace{handle}
	if err := n.deliverAll(address); err != nil {
		handle.Close()
		return nil, err
	}
	return n, nil
}

// deliverAll makes the kernel deliver everything that comes in here, for any address. What is sent
// from here goes by the main table, which has only the containers. The kernel looks up a packet's
// source as if the packet were an answer to it, so it finds the container's interface there, or
// that no container has this address.
func (n *namespace) deliverAll(address netip.Addr) error {
	links, err := Dump(n.handle.LinkList)
	if err != nil {
		return fmt.Errorf("cannot list interfaces: %w", err)
	}
	lo, err := n.handle.LinkByName("lo")
	if err != nil || len(links) != 1 {
		return fmt.Errorf("the namespace has %d interfaces: want loopback alone: %w", len(links),
			err)
	}
	if err := n.handle.LinkSetUp(lo); err != nil {
		return fmt.Errorf("cannot set loopback up: %w", err)
	}
	if err := n.handle.AddrAdd(lo, &netlink.Addr{IPNet: host(address)}); err != nil {
		return fmt.Errorf("cannot give loopback the address %s: %w", address, err)
	}
	const before, after = 10, 20
	sent, local, first := netlink.NewRule(), netlink.NewRule(), netlink.NewRule()
	sent.Family, sent.Priority, sent.IifName, sent.Table = unix.AF_INET, before, "lo",
		unix.RT_TABLE_MAIN
	local.Family, local.Priority, local.Table = unix.AF_INET, after, unix.RT_TABLE_LOCAL
	first.Family, first.Priority, first.Table = unix.AF_INET, 0, unix.RT_TABLE_LOCAL
	if err := errors.Join(n.handle.RuleAdd(sent), n.handle.RuleAdd(local),
		n.handle.RuleDel(first)); err != nil {
		return fmt.Errorf("cannot order the routing tables: %w", err)
	}
	all := &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	err = n.handle.RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
		Scope: netlink.SCOPE_HOST,
	})
	if err != nil {
		return fmt.Errorf("cannot deliver all addresses to the gateway: %w", err)
	}
	return nil
}

// attach connects a container whose interface is there. It may be repeated.
func (n *namespace) attach(addr netip.Addr, mac net.HardwareAddr) error {
	link, err := n.handle.LinkByName(LinkName(addr))
	if err != nil {
		return fmt.Errorf("cannot find the interface of %s: %w", addr, err)
	}
	if link.Type() != "veth" {
		return fmt.Errorf("the interface of %s is a %s", addr, link.Type())
	}
	if err := n.handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("cannot set the interface of %s up: %w", addr, err)
	}
	index := link.Attrs().Index
	// Set once and never learned: what a container says about hardware addresses does not count.
	err = n.handle.NeighSet(&netlink.Neigh{
		LinkIndex: index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
		Type: unix.RTN_UNICAST, IP: addr.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("cannot set the hardware address of %s: %w", addr, err)
	}
	err = n.handle.RouteReplace(
		&netlink.Route{LinkIndex: index, Dst: host(addr), Scope: netlink.SCOPE_LINK})
	if err != nil {
		return fmt.Errorf("cannot route to %s: %w", addr, err)
	}
	return nil
}

// detach removes a container's interface, at both ends. It is no error if the interface is gone.
func (n *namespace) detach(addr netip.Addr) error {
	link, err := n.handle.LinkByName(LinkName(addr))
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil
	}
	if err == nil {
		err = n.handle.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("cannot remove the interface of %s: %w", addr, err)
	}
	return nil
}

// attached lists the addresses that have an interface.
func (n *namespace) attached() ([]netip.Addr, error) {
	links, err := Dump(n.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("cannot list interfaces: %w", err)
	}
	var addrs []netip.Addr
	for _, link := range links {
		if addr, ok := linkAddr(link.Attrs().Name); ok {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// host returns the network of one address.
func host(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

// Dump asks the kernel for a list, and asks again if that changed while it was read.
func Dump[T any](list func() ([]T, error)) (all []T, err error) {
	const tries = 100
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
