package inet

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A Flow is what packets have in common.
type Flow struct {
	Proto    string // "tcp", "udp", "icmp", "icmp6", or the protocol's number
	Src, Dst netip.Addr
	Port     uint16 // of the destination; 0 where there is none, and for all but the first fragment
}

func (match Flow) matches(f Flow) bool {
	return (match.Proto == "" || match.Proto == f.Proto) &&
		(!match.Src.IsValid() || match.Src == f.Src) &&
		(!match.Dst.IsValid() || match.Dst == f.Dst) &&
		(match.Port == 0 || match.Port == f.Port)
}

// discard is the port that markers are sent to.
const discard = 9

func (c *Capture) isMarker(f Flow) bool {
	return f == Flow{Proto: "udp", Src: nth(c.in.space.pair, 1), Dst: c.markers.Addr(),
		Port: discard}
}

// markerNumber returns 0, which no marker has, for a packet that cannot be one.
func markerNumber(payload []byte) uint64 {
	if len(payload) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(payload)
}

var protocols = map[byte]string{
	unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp",
	unix.IPPROTO_ICMPV6: "icmp6",
}

// snapLength is how much of a packet is looked at: more than its headers.
const snapLength = 512

// parse reads an IP packet's headers, and for UDP returns what follows them. A packet that is not
// IP is not ok; one that is cut off, or makes no sense further on, is of the flow as far as that is
// known.
func parse(packet []byte) (f Flow, payload []byte, ok bool) {
	if len(packet) == 0 {
		return f, nil, false
	}
	var protocol byte
	var first bool
	switch packet[0] >> 4 {
	case 4:
		length := int(packet[0]&15) * 4
		if len(packet) < max(length, 20) {
			return f, nil, false
		}
		f.Src, f.Dst = netip.AddrFrom4([4]byte(packet[12:16])),
			netip.AddrFrom4([4]byte(packet[16:20]))
		protocol, first = packet[9], binary.BigEndian.Uint16(packet[6:])&0x1fff == 0
		packet = packet[length:]
	case 6:
		if len(packet) < 40 {
			return f, nil, false
		}
		f.Src, f.Dst = netip.AddrFrom16([16]byte(packet[8:24])),
			netip.AddrFrom16([16]byte(packet[24:40]))
		protocol, packet, first = skipExtensions(packet[6], packet[40:])
	default:
		return f, nil, false
	}
	if f.Proto = protocols[protocol]; f.Proto == "" {
		f.Proto = strconv.Itoa(int(protocol))
	}
	if !first {
		return f, nil, true
	}
	if (f.Proto == "tcp" || f.Proto == "udp") && len(packet) >= 4 {
		f.Port = binary.BigEndian.Uint16(packet[2:])
	}
	if f.Proto == "udp" && len(packet) >= 8 {
		payload = packet[8:]
	}
	return f, payload, true
}

// skipExtensions returns the first header of IPv6 that is of no extension, what begins with it, and
// whether that is the packet's begin and not a later fragment.
func skipExtensions(next byte, rest []byte) (protocol byte, payload []byte, first bool) {
	first = true
	for len(rest) >= 8 {
		length := 8 + int(rest[1])*8
		switch next {
		case unix.IPPROTO_FRAGMENT:
			length = 8
			first = binary.BigEndian.Uint16(rest[2:])>>3 == 0
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
		default:
			return next, rest, first
		}
		next, rest = rest[0], rest[min(length, len(rest)):]
		if !first {
			break
		}
	}
	return next, rest, first
}

// openRaw opens a socket that gets a copy of what comes over the link, before anything may drop it.
func openRaw() (*os.File, error) {
	link, err := net.InterfaceByName(insideLink)
	if err != nil {
		return nil, err
	}
	// Without a protocol it gets nothing until it is bound.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "capture")
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	for _, set := range []func() error{
		func() error {
			return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE,
				64<<20)
		},
		func() error {
			return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING,
				1)
		},
		func() error {
			return unix.Bind(fd,
				&unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
		},
	} {
		if err := set(); err != nil {
			_ = f.Close()
			return nil, os.NewSyscallError("packet socket", err)
		}
	}
	return f, nil
}

// dropped returns how many packets there was no room for since it was called last.
func dropped(f *os.File) (n uint64, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if controlErr := raw.Control(func(fd uintptr) {
		var stats *unix.TpacketStats
		if stats, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET,
			unix.PACKET_STATISTICS); err == nil {
			n = uint64(stats.Drops)
		}
	}); controlErr != nil {
		return 0, controlErr
	}
	return n, err
}
