package rules

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func ethernet(dst, src net.HardwareAddr, kind uint16, payload []byte) []byte {
	return slices.Concat(dst, src, binary.BigEndian.AppendUint16(nil, kind), payload, make([]byte, max(0, 46-len(payload))))
}

// datagram is an IPv4 packet with UDP.
func datagram(src, dst netip.Addr, port int, text string) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 4444)
	udp = binary.BigEndian.AppendUint16(udp, uint16(port))
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(text)))
	udp = append(append(udp, 0, 0), text...)
	ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = slices.Concat(ip, src.AsSlice(), dst.AsSlice())
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	return append(ip, udp...)
}

func arpPacket(operation byte, senderMAC net.HardwareAddr, sender netip.Addr, targetMAC net.HardwareAddr, target netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, operation}, senderMAC, sender.AsSlice(), targetMAC, target.AsSlice())
}

// describeFrame is "udp SRC > DST:PORT …", "arp N SRC > DST", or the type and the payload as text.
func describeFrame(f []byte) string {
	if len(f) < 14 {
		return "short"
	}
	kind, payload := binary.BigEndian.Uint16(f[12:]), f[14:]
	ip := func(at int) netip.Addr { a, _ := netip.AddrFromSlice(payload[at : at+4]); return a }
	switch {
	case kind == unix.ETH_P_ARP && len(payload) >= 28:
		return fmt.Sprintf("arp %d %v > %v from %v", payload[7], ip(14), ip(24), net.HardwareAddr(f[6:12]))
	case kind == unix.ETH_P_IP && len(payload) >= 24:
		names := map[byte]string{1: "icmp", 6: "tcp", 17: "udp"}
		next := payload[int(payload[0]&15)*4:]
		return fmt.Sprintf("%s %v > %v:%d %q", names[payload[9]], ip(12), ip(16), binary.BigEndian.Uint16(next[2:]), next)
	default:
		return fmt.Sprintf("%04x from %v %q", kind, net.HardwareAddr(f[6:12]), payload)
	}
}
