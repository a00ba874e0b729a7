package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

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

// tracker is our socket to connection tracking. It has a lock of its own: what goes through all tracked
// flows must not keep the rules waiting.
type tracker struct {
	mu    sync.Mutex
	netns int
	sock  *netlink.Conn // nil after a fault, and after close
	ended bool
}

func newTracker(netns int) (*tracker, error) {
	k := &tracker{netns: netns}
	return k, k.dial()
}

func (k *tracker) dial() (err error) {
	if k.sock, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.netns}); err != nil {
		k.sock = nil
	}
	return err
}

func (k *tracker) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.drop()
}

func (k *tracker) drop() {
	if k.sock != nil {
		_ = k.sock.Close()
		k.sock = nil
	}
}

// forget deletes what connection tracking holds of a container's address, so that the next one that
// gets it has none of it: neither the answers that are still coming, nor the translation to the guard.
func (k *tracker) forget(addr netip.Addr) error {
	return k.do(func() error {
		err := k.forgetAtOnce(addr)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			err = k.forgetOneByOne(addr)
		}
		return err
	})
}

// forgetAll does so for all addresses that match.
func (k *tracker) forgetAll(match func(netip.Addr) bool) error {
	return k.do(func() error {
		entries, err := k.flows(nil, match)
		return errors.Join(err, k.delete(entries))
	})
}

// do does something with the socket. It belongs to one at a time.
func (k *tracker) do(work func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return errors.New("the table is closed")
	}
	if k.sock == nil {
		if err := k.dial(); err != nil {
			return err
		}
	}
	err := work()
	if err != nil {
		k.drop() // answers may be left in it
	}
	return err
}

// forgetAtOnce deletes by filter, which older kernels cannot: they take the filter's tuple for the name of one
// flow and find it incomplete; so none of them deletes more than was meant. The kernel looks into each bucket
// of its table, of which a host with much memory has 262,144: that takes a millisecond.
func (k *tracker) forgetAtOnce(addr netip.Addr) error {
	filter, err := flowFilter(addr)
	if err != nil {
		return err
	}
	_, err = ask(k.sock, conntrackDelete, netlink.Acknowledge, nfgen(unix.AF_INET), filter...)
	return err
}

// forgetOneByOne does the same on any kernel. It takes some milliseconds: the kernel locks each of its
// buckets to list them.
func (k *tracker) forgetOneByOne(addr netip.Addr) error {
	entries, err := k.flowsOf(addr)
	return errors.Join(err, k.delete(entries))
}

// delete deletes flows by the attributes that name them.
func (k *tracker) delete(flows [][]netlink.Attribute) error {
	for _, flow := range flows {
		_, err := ask(k.sock, conntrackDelete, netlink.Acknowledge, nfgen(unix.AF_INET), flow...)
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

// flowsOf returns, for each flow that the address began, the attributes that name it.
func (k *tracker) flowsOf(addr netip.Addr) ([][]netlink.Attribute, error) {
	filter, err := flowFilter(addr)
	if err != nil {
		return nil, err
	}
	return k.flows(filter, func(source netip.Addr) bool { return source == addr })
}

// flows does so for each flow of an address that matches. Kernels before 5.8 know no filter and list all flows
// of the host.
func (k *tracker) flows(filter []netlink.Attribute, match func(source netip.Addr) bool) ([][]netlink.Attribute, error) {
	replies, err := ask(k.sock, conntrackGet, netlink.Dump, nfgen(unix.AF_INET), filter...)
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
				entry = append(entry, netlink.Attribute{Type: a.Type | unix.NLA_F_NESTED, Data: a.Data})
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
