package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/egress/gateway"
)

// checkBridge checks that the bridge is as Docker says.
func checkBridge(n networks.Network) error {
	broken := func(what string) error {
		return fmt.Errorf("bridge %s %s: %w", n.Bridge, what, errdefs.ErrFailedPrecondition)
	}
	link, err := netlink.LinkByName(n.Bridge)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return broken("is gone")
	} else if err != nil {
		return fmt.Errorf("cannot look at bridge %s: %w", n.Bridge, err)
	}
	if link.Type() != "bridge" {
		return broken("is a " + link.Type())
	}
	addrs, err := gateway.Dump(func() ([]netlink.Addr, error) {
		return netlink.AddrList(link, netlink.FAMILY_V4)
	})
	if err != nil {
		return fmt.Errorf("cannot list the addresses of bridge %s: %w", n.Bridge, err)
	}
	want := netip.PrefixFrom(n.Gateway, n.Subnet.Bits())
	for _, a := range addrs {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			if ones, _ := a.Mask.Size(); netip.PrefixFrom(addr.Unmap(), ones) == want {
				return nil
			}
		}
	}
	return broken("has lost its address " + want.String())
}

// kernelPatience bounds the wait for the kernel's answers, which come within the call.
const kernelPatience = 10 * time.Second

// interfaces asks the kernel about interfaces, over sockets that stay open.
type interfaces struct {
	mu     sync.Mutex
	handle *netlink.Handle // nil after close
	// dumps is for requests that the handle has no method for.
	dumps map[int]*nl.SocketHandle
}

func openInterfaces() (*interfaces, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the kernel for interfaces: %w", err)
	}
	dumps, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("cannot ask the kernel for interfaces: %w", err)
	}
	limit := unix.NsecToTimeval(kernelPatience.Nanoseconds())
	if err := errors.Join(handle.SetSocketTimeout(kernelPatience), dumps.SetReceiveTimeout(&limit),
		dumps.SetSendTimeout(&limit)); err != nil {
		handle.Close()
		dumps.Close()
		return nil, fmt.Errorf("cannot ask the kernel for interfaces: %w", err)
	}
	return &interfaces{handle: handle,
		dumps: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: dumps}}}, nil
}

func (l *interfaces) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == nil {
		return
	}
	l.handle.Close()
	l.handle = nil
	for _, socket := range l.dumps {
		socket.Close()
	}
}

// vethOf finds the host's end of a container's interface: the port of the bridge whose other end is
// in the network namespace of a process. It asks that namespace, which has few interfaces, and not
// the host, which has one for each container.
func (l *interfaces) vethOf(pid int, bridge string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handle == nil {
		return "", errClosed
	}
	master, err := l.handle.LinkByName(bridge)
	if err != nil {
		return "", fmt.Errorf("cannot look at bridge %s: %w", bridge, err)
	}
	nsid, err := l.nsidOf(pid)
	if err != nil {
		return "", fmt.Errorf(
			"cannot find the network namespace of process %d (with the service in a container, it needs the host's process ids): %w",
			pid, err)
	}
	inside, err := gateway.Dump(func() ([]netlink.Link, error) { return l.list(nsid) })
	if err != nil {
		return "", fmt.Errorf("cannot list the interfaces of process %d: %w", pid, err)
	}
	for _, one := range inside {
		peer := one.Attrs().ParentIndex
		if one.Type() != "veth" || peer == 0 {
			continue
		}
		port, err := l.handle.LinkByIndex(peer)
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			continue // its other end is in another namespace, where the index means another interface
		} else if err != nil {
			return "", fmt.Errorf("cannot look at interface %d: %w", peer, err)
		}
		if a := port.Attrs(); port.Type() == "veth" && a.MasterIndex == master.Attrs().Index &&
			a.NetNsID == nsid {
			return a.Name, nil
		}
	}
	return "", fmt.Errorf("no port of bridge %s leads to process %d: %w", bridge, pid,
		errdefs.ErrNotFound)
}

// nsidOf returns the id that the host's network namespace has for that of a process.
func (l *interfaces) nsidOf(pid int) (int, error) {
	return l.nsid(
		func() (int, error) { return l.handle.GetNetNsIdByPid(pid) },
		func(id int) error { return l.handle.SetNetNsIdByPid(pid, id) })
}

// nsid returns the id of a network namespace, which the kernel assigns when it is first needed.
func (l *interfaces) nsid(get func() (int, error), set func(int) error) (int, error) {
	const unnamed = -1
	id, err := get()
	if err != nil || id != unnamed {
		return id, err
	}
	if err := set(unnamed); err != nil && !errors.Is(err, unix.EEXIST) {
		return unnamed, err
	}
	if id, err = get(); err == nil && id == unnamed {
		err = errors.New("the kernel assigns it no id")
	}
	return id, err
}

// list returns the interfaces of another network namespace.
func (l *interfaces) list(nsid int) ([]netlink.Link, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.Sockets = l.dumps
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(nsid))))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	found := make([]netlink.Link, len(messages))
	for i, m := range messages {
		if found[i], err = netlink.LinkDeserialize(nil, m); err != nil {
			return nil, err
		}
	}
	return found, nil
}
