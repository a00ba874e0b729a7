package rules

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// patience bounds the wait for the kernel's answer, which normally comes within the call. It is for
// the case that the kernel gave up on a batch and does not answer any more.
const patience = 10 * time.Second

// wire has our sockets. They are kept open: making one costs more than what is sent over it.
type wire struct {
	rules    *nftables.Conn
	ruleSock *netlink.Conn // the socket inside of rules
	filter   *netlink.Conn // generations
	links    *netlink.Conn
}

func dial(netns int) (*wire, error) {
	w := &wire{}
	var err error
	w.rules, err = nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(netns),
		nftables.WithSockOptions(func(c *netlink.Conn) error {
			w.ruleSock = c
			// A whole ruleset goes in one message and each of its parts is answered.
			return errors.Join(c.SetWriteBuffer(16<<20), c.SetReadBuffer(4<<20))
		}))
	if err != nil {
		return nil, err
	}
	config := &netlink.Config{NetNS: netns}
	if w.filter, err = netlink.Dial(unix.NETLINK_NETFILTER, config); err == nil {
		w.links, err = netlink.Dial(unix.NETLINK_ROUTE, config)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *wire) close() {
	// Nothing can be done about an error of closing.
	_ = w.rules.CloseLasting()
	for _, c := range []*netlink.Conn{w.filter, w.links} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// A batch is what is sent in one transaction. It counts as one generation unless it is empty.
type batch struct {
	steps []func(*nftables.Conn) error
}

func (b *batch) add(step func(*nftables.Conn) error) { b.steps = append(b.steps, step) }

func (b *batch) then(next *batch) *batch { return &batch{append(b.steps, next.steps...)} }

// commit sends a batch and returns by how many generations the kernel has advanced.
func (w *wire) commit(b *batch) (uint32, error) {
	if len(b.steps) == 0 {
		return 0, nil
	}
	for _, step := range b.steps {
		if err := step(w.rules); err != nil {
			return 0, err
		}
	}
	if err := w.ruleSock.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	return 1, w.rules.Flush()
}

// generation returns the number that the kernel counts up with each change to any table of the
// namespace.
func (w *wire) generation() (uint32, error) {
	replies, err := ask(w.filter,
		netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN), 0,
		nfgen(unix.AF_UNSPEC))
	if err != nil {
		return 0, err
	}
	for _, m := range replies {
		for _, a := range attributes(m.Data, nfgenLen) {
			if a.Type == unix.NFTA_GEN_ID && len(a.Data) == 4 {
				return binary.BigEndian.Uint32(a.Data), nil
			}
		}
	}
	return 0, errors.New("the kernel did not say which generation its rules are")
}

const nfgenLen = 4

// nfgen returns the header of all netfilter messages: family, version, resource.
func nfgen(family byte) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// ask sends one request and collects its answers.
func ask(c *netlink.Conn, kind netlink.HeaderType, flags netlink.HeaderFlags, head []byte,
	parts ...netlink.Attribute) ([]netlink.Message, error) {
	body, err := netlink.MarshalAttributes(parts)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	return c.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
		Data:   append(append([]byte{}, head...), body...),
	})
}

// attributes returns those after a header of the given length, or none if they cannot be read.
func attributes(data []byte, header int) []netlink.Attribute {
	if len(data) < header {
		return nil
	}
	all, err := netlink.UnmarshalAttributes(data[header:])
	if err != nil {
		return nil
	}
	for i := range all {
		all[i].Type &^= unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	}
	return all
}

func nested(kind uint16, parts ...netlink.Attribute) (netlink.Attribute, error) {
	data, err := netlink.MarshalAttributes(parts)
	if err != nil {
		return netlink.Attribute{}, fmt.Errorf("cannot encode attribute %d: %w", kind, err)
	}
	return netlink.Attribute{Type: kind | unix.NLA_F_NESTED, Data: data}, nil
}
