package e2e

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
)

// layBridge makes the bridge that the hosts are on.
func (c *clusterLab) layBridge(t *testing.T) {
	var err error
	if c.hub, err = newNamespace(); err != nil {
		t.Fatal(err)
	}
	if err := (&place{ns: c.hub}).do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		return netlink.LinkSetUp(bridge)
	}); err != nil {
		t.Fatal(err)
	}
}

// plug connects a host with the bridge, and has it give connections up as docs/cluster.md says.
func (c *clusterLab) plug(t *testing.T, h *clusterHost, i int) {
	if err := (&place{ns: c.hub}).do(func() error {
		bridge, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("h%d", i), MasterIndex: bridge.Attrs().Index}, PeerName: "eth0", PeerNamespace: netlink.NsFd(h.engine.place.ns)}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.engine.place.do(func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_retries2", []byte("4"), 0); err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(h.address), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}); err != nil {
		t.Fatal(err)
	}
}

// cut takes a host's link down, or up again.
func (c *clusterLab) cut(t *testing.T, h *clusterHost, down bool) {
	t.Helper()
	for i, other := range c.hosts {
		if other != h {
			continue
		}
		if err := (&place{ns: c.hub}).do(func() error {
			link, err := netlink.LinkByName(fmt.Sprintf("h%d", i))
			if err == nil && down {
				return netlink.LinkSetDown(link)
			} else if err == nil {
				return netlink.LinkSetUp(link)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}
