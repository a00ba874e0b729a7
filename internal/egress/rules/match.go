package rules

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// This file is the vocabulary of render.go: each word is a few expressions of the kernel's, named
// for what nft would write. A rule is a list of them.

type phrase = []expr.Any

// Registers. A concatenation lies in consecutive ones: an interface's name fills the 16 bytes of
// the first, then each field takes whole units of four bytes. 8 is the first of these units'
// numbers.
const (
	first       = unix.NFT_REG_1
	afterName   = unix.NFT_REG_2 // 16 bytes into first
	afterNameTo = 8 + 6          // a name and a hardware address into first
)

func meta(key expr.MetaKey, register uint32) expr.Any {
	return &expr.Meta{Key: key, Register: register}
}

func equals(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: data}
}

func in(set string) expr.Any { return &expr.Lookup{SourceRegister: first, SetName: set} }

func load(base expr.PayloadBase, offset, length, register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}
}

// masked keeps the bits of the register that are in mask, then flips those in flip.
func masked(mask, flip uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: first, DestRegister: first, Len: 4,
		Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: binaryutil.NativeEndian.PutUint32(flip)}
}

func name(s string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, s)
	return padded
}

func port(p uint16) []byte { return binaryutil.BigEndian.PutUint16(p) }

// Where a packet or frame comes from and goes to.

func iif(bridge string) phrase {
	return phrase{meta(expr.MetaKeyIIFNAME, first), equals(name(bridge)...)}
}
func iifNot(lone string) phrase {
	return phrase{meta(expr.MetaKeyIIFNAME, first),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: first, Data: name(lone)}}
}
func iifIn(set string) phrase { return phrase{meta(expr.MetaKeyIIFNAME, first), in(set)} }
func oifIn(set string) phrase { return phrase{meta(expr.MetaKeyOIFNAME, first), in(set)} }
func oif(bridge string) phrase {
	return phrase{meta(expr.MetaKeyOIFNAME, first), equals(name(bridge)...)}
}

const (
	sourceAt      = 12 // in an IPv4 header
	destinationAt = 16
)

func ipAt(offset, register uint32) expr.Any {
	return load(expr.PayloadBaseNetworkHeader, offset, 4, register)
}

func sourceIn(set string) phrase      { return phrase{ipAt(sourceAt, first), in(set)} }
func destinationIn(set string) phrase { return phrase{ipAt(destinationAt, first), in(set)} }

// iifSourceIn is iifname . ip saddr @set, and so on.
func iifSourceIn(set string) phrase {
	return phrase{meta(expr.MetaKeyIIFNAME, first), ipAt(sourceAt, afterName), in(set)}
}
func iifDestinationIn(set string) phrase {
	return phrase{meta(expr.MetaKeyIIFNAME, first), ipAt(destinationAt, afterName), in(set)}
}
func oifDestinationIn(set string) phrase {
	return phrase{meta(expr.MetaKeyOIFNAME, first), ipAt(destinationAt, afterName), in(set)}
}

// What it is.

func ipv4() phrase { return phrase{meta(expr.MetaKeyNFPROTO, first), equals(unix.NFPROTO_IPV4)} }
func protocol(number byte) phrase {
	return phrase{meta(expr.MetaKeyL4PROTO, first), equals(number)}
}
func dport(p uint16) phrase {
	return phrase{load(expr.PayloadBaseTransportHeader, 2, 2, first), equals(port(p)...)}
}

// etherType reads the frame itself: meta protocol would be the one inside of a VLAN tag.
func etherType(number uint16) phrase {
	return phrase{load(expr.PayloadBaseLLHeader, 12, 2, first), equals(port(number)...)}
}

// arpForIPv4 matches the hardware and protocol types and sizes that the ARP offsets below depend
// on.
func arpForIPv4() phrase {
	return phrase{load(expr.PayloadBaseNetworkHeader, 0, 6, first), equals(0, 1, 8, 0, 6, 4)}
}
func arpTarget(addr netip.Addr) phrase {
	return phrase{load(expr.PayloadBaseNetworkHeader, 24, 4, first), equals(addr.AsSlice()...)}
}

// boundBy looks up iifname . hardware address . IPv4 address, with the addresses that the given
// loads read.
func boundBy(set string, mac, addr func(register uint32) expr.Any) phrase {
	return phrase{meta(expr.MetaKeyIIFNAME, first), mac(afterName), addr(afterNameTo), in(set)}
}
func etherSource(register uint32) expr.Any { return load(expr.PayloadBaseLLHeader, 6, 6, register) }
func ipSource(register uint32) expr.Any    { return ipAt(sourceAt, register) }
func arpSenderMAC(register uint32) expr.Any {
	return load(expr.PayloadBaseNetworkHeader, 8, 6, register)
}
func arpSenderIP(register uint32) expr.Any { return ipAt(14, register) }

// What connection tracking knows.

func ctState(bits uint32) phrase {
	return phrase{&expr.Ct{Key: expr.CtKeySTATE, Register: first}, masked(bits, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: first, Data: make([]byte, 4)}}
}

// ctReply is ct direction reply: a packet from the side that was called.
func ctReply() phrase {
	return phrase{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: first}, equals(1)}
}

// What one source may have. The kernel keeps count in a set, by source address.

// meter matches packets beyond so many a second.
func meter(set string, rate int) phrase {
	return bySource(set, &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(rate),
		Unit: expr.LimitTimeSecond, Burst: uint32(rate), Over: true})
}

// tracked matches what would exceed so many tracked flows.
func tracked(set string, limit int) phrase {
	const over = 1 // NFT_CONNLIMIT_F_INV
	return bySource(set, &expr.Connlimit{Count: uint32(limit), Flags: over})
}

func bySource(set string, condition expr.Any) phrase {
	return phrase{ipAt(sourceAt, first),
		&expr.Dynset{SrcRegKey: first, SetName: set, Operation: unix.NFT_DYNSET_OP_ADD,
			Exprs: phrase{condition}}}
}

// The mark, and verdicts.

func unmarked() phrase {
	return phrase{meta(expr.MetaKeyMARK, first), masked(boundMark, 0), equals(0, 0, 0, 0)}
}
func setMark(flip uint32) phrase {
	return phrase{meta(expr.MetaKeyMARK, first), masked(^uint32(boundMark), flip),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: first}}
}
func mark() phrase   { return setMark(boundMark) }
func unmark() phrase { return setMark(0) }

func drop() phrase   { return phrase{&expr.Verdict{Kind: expr.VerdictDrop}} }
func accept() phrase { return phrase{&expr.Verdict{Kind: expr.VerdictAccept}} }
func to(chain string) phrase {
	return phrase{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

var (
	ifnameType = nftables.TypeIFName
	memberType = nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr)
	boundType  = nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr,
		nftables.TypeIPAddr)
)
