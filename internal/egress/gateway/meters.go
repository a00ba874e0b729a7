package gateway

import (
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// meterMemory is how long a source that sends no more is remembered.
const meterMemory = time.Minute

// sources returns how many sources are told apart: at least as many as the network has addresses.
// Packets from others do not get here.
func (c Config) sources() uint32 { return uint32(max(c.Addresses, fewAddresses)) }

// setMeters bounds what of one source is delivered in a second. The excess is dropped before any
// socket, so a flood costs its sender alone. The meters are in the input hook, which comes after
// the source has been verified.
func setMeters(c Config) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("cannot use nftables: %w", err)
	}
	accept := nftables.ChainPolicyAccept
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "meters"})
	chain := conn.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &accept,
	})
	for i, m := range []struct {
		name  string
		rate  int
		match []expr.Any
	}{
		{"questions", c.Questions, []expr.Any{
			// Only those: packets to other ports find no socket, and must not use up their sender's
			// questions.
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals(unix.IPPROTO_UDP),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2,
				Len: 2}, equals(0, dnsPort),
		}},
		{"connections", c.Connections, []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equals(unix.IPPROTO_TCP),
			// The flags SYN and ACK: the first packet of a connection has SYN alone.
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13,
				Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{0x12},
				Xor: []byte{0}}, equals(0x02),
		}},
	} {
		set := &nftables.Set{
			ID: uint32(i + 1), Table: table, Name: m.name, KeyType: nftables.TypeIPAddr,
			KeyByteOrder: binaryutil.BigEndian, Dynamic: true, HasTimeout: true,
			Timeout: meterMemory, Size: c.sources(),
		}
		if err := conn.AddSet(set, nil); err != nil {
			return fmt.Errorf("cannot bound %s: %w", m.name, err)
		}
		tooMany := &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(m.rate),
			Unit: expr.LimitTimeSecond, Burst: uint32(m.rate), Over: true}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(m.match,
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, // the source
			&expr.Dynset{SrcRegKey: 1, SetName: set.Name, SetID: set.ID,
				Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{tooMany}},
			&expr.Verdict{Kind: expr.VerdictDrop})})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf(
			"cannot bound what one container sends: the kernel needs nf_tables with dynamic sets and limits: %w",
			err)
	}
	return nil
}

func equals(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}
}
