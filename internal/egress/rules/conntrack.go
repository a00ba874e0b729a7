package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// From linux/netfilter/nfnetlink_conntrack.h, where the unix package has no names.
const (
	conntrackGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	conntrackDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctTupleOriginal = 1
	ctID            = 12
	ctZone          = 18
	ctFilter        = 25

	ctTupleIP = 1
	ctSource  = 1

	ctFilterOriginal = 1
	ctFilterSource   = 1 << 0
)

// track calls do with a socket of its own to connection tracking: a request that goes through all
// tracked flows must not keep the rules waiting.
func (t *Table) track(do func(*netlink.Conn) error) error {
	sock, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.cfg.NetNS})
	if err != nil {
		return err
	}
	defer sock.Close()
	return do(sock)
}

// forget deletes what connection tracking holds of a container's address, so that the next
// container that gets the address has none of it, such as the answers that are still coming.
func forget(sock *netlink.Conn, addr netip.Addr) error {
	err := forgetAtOnce(sock, addr)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = forgetOneByOne(sock, addr)
	}
	return err
}

// forgetAtOnce deletes by filter. Older kernels cannot: they take the filter's tuple for the name
// of one flow and find it incomplete, so none of them deletes more than was meant. The kernel looks
// into each bucket of its table, of which a host with much memory has 262,144: that takes a
// millisecond.
func forgetAtOnce(sock *netlink.Conn, addr netip.Addr) error {
	filter, err := flowFilter(addr)
	if err != nil {
		return err
	}
	_, err = ask(sock, conntrackDelete, netlink.Acknowledge, nfgen(unix.AF_INET), filter...)
	return err
}

// forgetOneByOne does the same on any kernel. It takes some milliseconds: the kernel locks each of
// its buckets to list them.
func forgetOneByOne(sock *netlink.Conn, addr netip.Addr) error {
	entries, err := flowsOf(sock, addr)
	return errors.Join(err, deleteFlows(sock, entries))
}

// deleteFlows deletes flows by the attributes that name them.
func deleteFlows(sock *netlink.Conn, flows [][]netlink.Attribute) error {
	for _, flow := range flows {
		_, err := ask(sock, conntrackDelete, netlink.Acknowledge, nfgen(unix.AF_INET), flow...)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cannot delete a tracked flow: %w", err)
		}
	}
	return nil
}

// flowFilter matches the flows that the address began.
func flowFilter(addr netip.Addr) ([]netlink.Attribute, error) {
	ip, err := nested(ctTupleIP, netlink.Attribute{Type: ctSource, Data: addr.AsSlice()})
	if err != nil {
		return nil, err
	}
	tuple, err := nested(ctTupleOriginal, ip)
	if err != nil {
		return nil, err
	}
	filter, err := nested(ctFilter,
		netlink.Attribute{Type: ctFilterOriginal,
			Data: binary.NativeEndian.AppendUint32(nil, ctFilterSource)})
	return []netlink.Attribute{tuple, filter}, err
}

// flowsOf returns, for each flow that the address began, the attributes that name it.
func flowsOf(sock *netlink.Conn, addr netip.Addr) ([][]netlink.Attribute, error) {
	filter, err := flowFilter(addr)
	if err != nil {
		return nil, err
	}
	return flows(sock, filter, func(source netip.Addr) bool { return source == addr })
}

// flows returns the same for each flow whose source matches. Kernels before 5.8 know no filter and
// list all flows of the host.
func flows(sock *netlink.Conn, filter []netlink.Attribute,
	match func(source netip.Addr) bool) ([][]netlink.Attribute, error) {
	replies, err := ask(sock, conntrackGet, netlink.Dump, nfgen(unix.AF_INET), filter...)
	if err != nil {
		return nil, fmt.Errorf("cannot list tracked flows: %w", err)
	}
	var found [][]netlink.Attribute
	for _, m := range replies {
		var entry []netlink.Attribute
		matches := false
		for _, a := range attributes(m.Data, nfgenLen) {
			switch a.Type {
			case ctTupleOriginal:
				source, ok := netip.AddrFromSlice(sourceOf(a.Data))
				matches = ok && match(source)
				entry = append(entry, netlink.Attribute{Type: a.Type | unix.NLA_F_NESTED,
					Data: a.Data})
			case ctID, ctZone:
				entry = append(entry, a)
			}
		}
		if matches {
			found = append(found, entry)
		}
	}
	return found, nil
}

func sourceOf(tuple []byte) []byte {
	for _, part := range attributes(tuple, 0) {
		if part.Type != ctTupleIP {
			continue
		}
		for _, a := range attributes(part.Data, 0) {
			if a.Type == ctSource {
				return a.Data
			}
		}
	}
	return nil
}
