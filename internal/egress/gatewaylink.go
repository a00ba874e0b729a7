package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dnsfilter"
	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/egress/gateway"
)

// gatewayQuestions is how many times a container's limit of questions per second the gateway lets
// through to the DNS filter, which turns down and reports those beyond the limit. The gateway drops
// the rest.
const gatewayQuestions = 5

// Gateway returns what a network's gateway is made from. It reports false where nothing can be
// filtered: such a network has no gateway.
func (e *Egress) Gateway(n networks.Network) (networks.Gateway, bool, error) {
	if e.unfiltered != nil {
		return networks.Gateway{}, false, nil
	}
	argument, err := e.gatewayConfig(n).Argument()
	return networks.Gateway{
		Program: e.cfg.GatewayProgram, Arguments: []string{"gateway", argument},
		Dir: filepath.Join(e.cfg.GatewayDir, n.Profile), Target: gateway.SharedDir,
		Sysctls: gateway.Sysctls(),
	}, true, err
}

func (e *Egress) gatewayConfig(n networks.Network) gateway.Config {
	return gateway.Config{
		Version: gateway.Version, Address: n.Gateway, Ports: e.cfg.ExtraPorts,
		Questions: gatewayQuestions * e.cfg.QueriesPerSecond, Connections: e.cfg.MaxConnections,
		Addresses: gateway.AddressesOf(n.Subnet),
	}
}

// gatewayLink connects the filtered containers of a network to its gateway.
type gatewayLink struct {
	interfaces *interfaces
	bridge     string
	*gateway.Client
}

// openGateway connects to a network's gateway.
func (e *Egress) openGateway(ctx context.Context, n networks.Network) (*gatewayLink, error) {
	client, err := gateway.Dial(ctx, n.GatewayDir, e.gatewayConfig(n))
	if err != nil {
		return nil, err
	}
	return &gatewayLink{interfaces: e.interfaces, bridge: n.Bridge, Client: client}, nil
}

// dnsSockets returns the DNS filter's sockets.
func (g *gatewayLink) dnsSockets() []dnsfilter.Socket {
	if g == nil {
		return nil
	}
	return []dnsfilter.Socket{{TCP: g.DNSOverTCP, UDP: g.DNSOverUDP}}
}

// link is what a container's runtime is told (tools/runsc/linker). Space is a file of the gateway's
// network namespace, which the runtime finds while this service runs, and Inode the namespace's
// number. The end there gets the Name, and stays down until the container is bound.
type link struct {
	Space   string       `json:"space"`
	Inode   uint64       `json:"inode"`
	Name    string       `json:"name"`
	MAC     string       `json:"mac"`
	Addr    netip.Prefix `json:"addr"`
	Gateway netip.Addr   `json:"gateway"`
}

// link returns that as JSON; empty if the gateway has gone.
func (g *gatewayLink) link(n networks.Network, addr netip.Addr, mac net.HardwareAddr) string {
	var space unix.Stat_t
	fd := int(g.Space.Fd())
	if err := unix.Fstat(fd, &space); err != nil {
		return ""
	}
	text, err := json.Marshal(link{
		Space: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), Inode: space.Ino,
		Name: gateway.LinkName(addr), MAC: mac.String(),
		Addr: netip.PrefixFrom(addr, n.Subnet.Bits()), Gateway: n.Gateway,
	})
	if err != nil {
		return ""
	}
	return string(text)
}

// connect has a container's interface at the gateway. From then on the container reaches the gateway
// and nothing else.
func (g *gatewayLink) connect(ep networks.Endpoint) error {
	bring := g.moveIn
	if ep.Linked {
		bring = g.check
	}
	err := bring(ep)
	if err == nil {
		err = g.Attach(ep.Addr, ep.MAC)
	}
	if err != nil {
		return fmt.Errorf("cannot connect %s to its gateway: %w", ep.Name, err)
	}
	return nil
}

// moveIn moves the host's end of a container's interface from the bridge to the gateway, or checks
// that it is there already.
func (g *gatewayLink) moveIn(ep networks.Endpoint) error {
	veth, err := g.interfaces.vethOf(ep.PID, g.bridge)
	switch {
	case errdefs.IsNotFound(err):
		return g.check(ep)
	case err != nil:
		return err
	}
	// An interface that an earlier container left there would be in the way.
	if err := g.Detach(ep.Addr); err != nil {
		return err
	}
	return g.interfaces.move(veth, g.Space, gateway.LinkName(ep.Addr))
}

// check checks that the interface of a container's address leads to the container.
func (g *gatewayLink) check(ep networks.Endpoint) error {
	return g.interfaces.checkPeer(ep.PID, g.Space, gateway.LinkName(ep.Addr))
}

func (g *gatewayLink) close() {
	if g != nil {
		g.Close()
	}
}

// move moves an interface of the host into another network namespace and renames it, in one step.
func (l *interfaces) move(name string, space *os.File, as string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == nil {
		return errClosed
	}
	link, err := l.handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("cannot look at interface %s: %w", name, err)
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = l.dumps
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(link.Attrs().Index)
	req.AddData(head)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(space.Fd()))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(as)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("cannot move interface %s: %w", name, err)
	}
	return nil
}

// checkPeer checks that the interface of that name in a network namespace is the other end of one
// of a process's interfaces.
func (l *interfaces) checkPeer(pid int, space *os.File, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == nil {
		return errClosed
	}
	far, err := l.nsid(
		func() (int, error) { return l.handle.GetNetNsIdByFd(int(space.Fd())) },
		func(id int) error { return l.handle.SetNetNsIdByFd(int(space.Fd()), id) })
	if err != nil {
		return fmt.Errorf("cannot find the gateway's network namespace: %w", err)
	}
	end, err := l.named(far, name)
	if err != nil {
		return err
	}
	near, err := l.nsidOf(pid)
	if err != nil {
		return fmt.Errorf("cannot find the network namespace of process %d: %w", pid, err)
	}
	inside, err := gateway.Dump(func() ([]netlink.Link, error) { return l.list(near) })
	if err != nil {
		return fmt.Errorf("cannot list the interfaces of process %d: %w", pid, err)
	}
	for _, one := range inside {
		a := one.Attrs()
		if one.Type() == "veth" && a.ParentIndex == end.Attrs().Index &&
			end.Attrs().ParentIndex == a.Index {
			return nil
		}
	}
	return fmt.Errorf("interface %s of the gateway does not lead to process %d: %w", name, pid,
		errdefs.ErrNotFound)
}

// named returns the interface of a name in another network namespace.
func (l *interfaces) named(space int, name string) (netlink.Link, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	req.Sockets = l.dumps
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(space))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if errors.Is(err, unix.ENODEV) {
		return nil, fmt.Errorf("the gateway has no interface %s: %w", name, errdefs.ErrNotFound)
	}
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("cannot look at interface %s of the gateway: %d answers: %w", name,
			len(messages), err)
	}
	return netlink.LinkDeserialize(nil, messages[0])
}

var errClosed = errors.New("the service is shutting down")
