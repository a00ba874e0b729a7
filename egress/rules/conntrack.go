package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Of linux/netfilter/nfnetlink_conntrack.h, where the unix package has no names.
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

// forgetFlows deletes what connection tracking holds of a container's address, so that the next one that
// gets it has none of it: neither the answers that are still coming, nor the translation to the guard.
func (w *wire) forgetFlows(addr netip.Addr) error {
	filter, err := flowFilter(addr)
	if err != nil {
		return err
	}
	// Newer kernels delete by filter, in a tenth of a millisecond. Older ones take the filter's tuple for
	// the name of one flow and find it incomplete; so none of them deletes more than was meant.
	_, err = ask(w.filter, conntrackDelete, netlink.Acknowledge, nfgen(unix.AF_INET), filter...)
	if err == nil || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return w.forgetOneByOne(addr)
}

// forgetOneByOne is forgetFlows on any kernel. It takes some milliseconds: the kernel locks each of its
// buckets to list them.
func (w *wire) forgetOneByOne(addr netip.Addr) error {
	entries, err := w.flowsOf(addr)
	if err != nil {
		return fmt.Errorf("cannot list tracked flows: %w", err)
	}
	for _, entry := range entries {
		_, err := ask(w.filter, conntrackDelete, netlink.Acknowledge, nfgen(unix.AF_INET), entry...)
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
		netlink.Attribute{Type: ctFilterOriginal, Data: binary.NativeEndian.AppendUint32(nil, ctFilterSource)})
	return []netlink.Attribute{tuple, filter}, err
}

// flowsOf returns, for each flow that the address began, the attributes that name it. Kernels before 5.8
// know no filter and list all flows of the host.
func (w *wire) flowsOf(addr netip.Addr) ([][]netlink.Attribute, error) {
	filter, err := flowFilter(addr)
	if err != nil {
		return nil, err
	}
	replies, err := ask(w.filter, conntrackGet, netlink.Dump, nfgen(unix.AF_INET), filter...)
	if err != nil {
		return nil, err
	}
	var found [][]netlink.Attribute
	for _, m := range replies {
		var entry []netlink.Attribute
		ours := false
		for _, a := range attributes(m.Data, nfgenLen) {
			switch a.Type {
			case ctTupleOriginal:
				ours = slices.Equal(sourceOf(a.Data), addr.AsSlice())
				entry = append(entry, netlink.Attribute{Type: a.Type | unix.NLA_F_NESTED, Data: a.Data})
			case ctID, ctZone:
				entry = append(entry, a)
			}
		}
		if ours {
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
