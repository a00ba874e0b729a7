package rules

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A frame to a link-local group (01:80:c2:00:00:0x) never comes to the bridge's hooks, yet the
// bridge learns its source: one such frame from a container, with the hardware address of another,
// and the host sends the other's traffic to it. Only a setting of the bridge stops that (Linux
// 5.0).
const noLinkLocalLearning = 1 << 0 // BR_BOOLOPT_NO_LL_LEARN

const bridgeBoolOptions = 46 // IFLA_BR_MULTI_BOOLOPT

const linkHeader = unix.SizeofIfInfomsg

// A link is an interface as rtnetlink has it.
type link struct {
	index, master      uint32
	kind               string
	linkLocalUnlearned bool
}

func (w *wire) link(name string) (link, error) {
	replies, err := ask(w.links, unix.RTM_GETLINK, 0, make([]byte, linkHeader),
		netlink.Attribute{Type: unix.IFLA_IFNAME, Data: append([]byte(name), 0)})
	if err != nil {
		return link{}, fmt.Errorf("cannot look up interface %q: %w", name, err)
	}
	if len(replies) != 1 || len(replies[0].Data) < linkHeader {
		return link{}, fmt.Errorf("cannot look up interface %q: not one answer", name)
	}
	l := link{index: binary.NativeEndian.Uint32(replies[0].Data[4:])}
	for _, a := range attributes(replies[0].Data, linkHeader) {
		switch {
		case a.Type == unix.IFLA_MASTER && len(a.Data) == 4:
			l.master = binary.NativeEndian.Uint32(a.Data)
		case a.Type == unix.IFLA_LINKINFO:
			l.readInfo(a.Data)
		}
	}
	return l, nil
}

func (l *link) readInfo(data []byte) {
	for _, info := range attributes(data, 0) {
		switch info.Type {
		case unix.IFLA_INFO_KIND:
			l.kind = unix.ByteSliceToString(info.Data)
		case unix.IFLA_INFO_DATA:
			if l.kind != "bridge" { // the kind comes first; the numbers mean something else for another
				continue
			}
			for _, a := range attributes(info.Data, 0) {
				if a.Type == bridgeBoolOptions && len(a.Data) == 8 {
					l.linkLocalUnlearned = binary.NativeEndian.Uint32(
						a.Data)&noLinkLocalLearning != 0
				}
			}
		}
	}
}

// isPortOf returns an error if veth is no port of the bridge.
func (w *wire) isPortOf(veth, bridge string) error {
	b, err := w.link(bridge)
	if err != nil {
		return err
	}
	v, err := w.link(veth)
	if err != nil {
		return err
	}
	if v.master != b.index {
		return fmt.Errorf("it is no port of bridge %q", bridge)
	}
	return nil
}

// refuseLinkLocalLearning sets the bridge's option and checks that it took effect.
func (w *wire) refuseLinkLocalLearning(bridge string) error {
	l, err := w.link(bridge)
	if err != nil || l.linkLocalUnlearned {
		return err
	}
	if l.kind != "bridge" {
		return fmt.Errorf("interface %q is no bridge", bridge)
	}
	option := binary.NativeEndian.AppendUint32(nil, noLinkLocalLearning)
	option = binary.NativeEndian.AppendUint32(option, noLinkLocalLearning) // which bits the value is about
	data, err := nested(unix.IFLA_INFO_DATA,
		netlink.Attribute{Type: bridgeBoolOptions, Data: option})
	if err != nil {
		return err
	}
	info, err := nested(unix.IFLA_LINKINFO,
		netlink.Attribute{Type: unix.IFLA_INFO_KIND, Data: []byte("bridge\x00")}, data)
	if err != nil {
		return err
	}
	head := make([]byte, linkHeader)
	binary.NativeEndian.PutUint32(head[4:], l.index)
	if _, err := ask(w.links, unix.RTM_NEWLINK, netlink.Acknowledge, head, info); err != nil {
		return fmt.Errorf("cannot stop bridge %q learning from link-local frames: %w", bridge, err)
	}
	if l, err = w.link(bridge); err == nil && !l.linkLocalUnlearned {
		err = errors.New(
			"this kernel cannot stop a bridge learning from link-local frames (Linux 5.0 can)")
	}
	return err
}
