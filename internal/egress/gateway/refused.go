package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// What a container sends to a port at which nothing listens is refused by the kernel, whoever is
// there. So that it leaves a trace, the kernel also tells the service of it, within a bound for
// each source. Nothing depends on that.

// Refused is a connection or datagram that the kernel has refused.
type Refused struct {
	From netip.Addr
	To   netip.AddrPort
	UDP  bool
}

const (
	refusedGroup = 1
	// refusedRate and refusedBurst bound how many refusals of one source the kernel tells in a
	// second, and at once.
	refusedRate, refusedBurst = 20, 64
	// refusedBytes is what is told of a packet: the longest IP header, and the ports.
	refusedBytes = 64
)

// traceRefused has the kernel tell of refused packets, and returns the socket on which it does.
func traceRefused(c Config) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
		unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("cannot ask the kernel what it refuses: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "refused")
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err == nil {
		err = unix.Sendto(fd, bindGroup(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err == nil {
		err = acknowledged(fd)
	}
	if err == nil {
		err = logRefused(c)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot ask the kernel what it refuses: %w", err),
			socket.Close())
	}
	return socket, nil
}

// bindGroup returns the message that asks for the packets of refusedGroup, each at once.
func bindGroup() []byte {
	const (
		config   = 4<<8 | 1 // of the subsystem ULOG
		bind     = 1        // attribute 1
		packet   = 2        // attribute 2: copy the packet
		copyMode = 2
		atOnce   = 5
	)
	b := make([]byte, unix.NLMSG_HDRLEN)
	b = append(b, unix.AF_UNSPEC, 0, 0, refusedGroup)
	b = append(b, 5, 0, 1, 0, bind, 0, 0, 0)
	b = append(b, 10, 0, copyMode, 0, 0, 0, 0, refusedBytes, packet, 0, 0, 0)
	b = append(b, 8, 0, atOnce, 0, 0, 0, 0, 1)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], config)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	return b
}

// acknowledged reads the kernel's answer to the only message sent so far, which has come by when
// that was sent.
func acknowledged(fd int) error {
	b := make([]byte, 1<<12)
	n, err := unix.Read(fd, b)
	if err != nil {
		return err
	}
	if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(b[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer is not one")
	}
	if code := int32(binary.NativeEndian.Uint32(b[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// logRefused makes the rules that tell. They decide nothing, and come after those that drop a
// flood.
func logRefused(c Config) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	accept, later := nftables.ChainPolicyAccept, *nftables.ChainPriorityFilter+1
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "refused"})
	chain := conn.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: &later, Policy: &accept,
	})
	told := &nftables.Set{
		ID: 1, Table: table, Name: "told", KeyType: nftables.TypeIPAddr,
		KeyByteOrder: binaryutil.BigEndian, Dynamic: true, HasTimeout: true, Timeout: time.Minute,
		Size: c.sources(),
	}
	if err := conn.AddSet(told, nil); err != nil {
		return err
	}
	done := &expr.Verdict{Kind: expr.VerdictAccept}
	rule := func(match ...expr.Any) {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: match})
	}
	at := func(base expr.PayloadBase, offset, size uint32) expr.Any {
		return &expr.Payload{DestRegister: 1, Base: base, Offset: offset, Len: size}
	}
	port := at(expr.PayloadBaseTransportHeader, 2, 2)
	protocol := &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}
	// A packet of a connection that is there ends here.
	rule(protocol, equals(unix.IPPROTO_TCP), at(expr.PayloadBaseTransportHeader, 13, 1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{0x12},
			Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0x02}}, done)
	rule(at(expr.PayloadBaseNetworkHeader, 16, 4), equals(c.Address.AsSlice()...), port,
		equals(0, dnsPort), done)
	for _, open := range append([]uint16{80, 443}, c.Ports...) {
		rule(protocol, equals(unix.IPPROTO_TCP), port, equals(byte(open>>8), byte(open)), done)
	}
	for _, kind := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		rule(protocol, equals(kind), at(expr.PayloadBaseNetworkHeader, 12, 4),
			&expr.Dynset{SrcRegKey: 1, SetName: told.Name, SetID: told.ID,
				Operation: unix.NFT_DYNSET_OP_UPDATE, Exprs: []expr.Any{
					&expr.Limit{Type: expr.LimitTypePkts, Rate: refusedRate,
						Unit:  expr.LimitTimeSecond,
						Burst: refusedBurst},
				}},
			&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN, Group: refusedGroup,
				Snaplen: refusedBytes})
	}
	return conn.Flush()
}

// refused asks for the socket on which the kernel tells what it refuses.
func (c *Client) refused() (*os.File, error) {
	_, files, err := c.ask(request{Do: doRefused})
	if err != nil || len(files) != 1 {
		closeAll(files)
		return nil, errors.Join(err, errors.New("got no socket"))
	}
	defer closeAll(files)
	fd, err := unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.SetNonblock(fd, true) // so that closing it ends a read
	return os.NewFile(uintptr(fd), "refused"), nil
}

// ReadRefused passes on what the kernel refuses until Refused is closed. What comes too fast is
// left out.
func (c *Client) ReadRefused(tell func(Refused)) {
	if raw, err := c.Refused.SyscallConn(); err == nil {
		_ = raw.Read(func(fd uintptr) bool {
			for {
				if err := c.passOn(int(fd), tell); err != nil {
					return !errors.Is(err, unix.EAGAIN)
				}
			}
		})
	}
}

// PassRefused passes on what ReadRefused has not read yet, and does not wait. The kernel tells of a
// packet before its sender can learn that it was refused.
func (c *Client) PassRefused(tell func(Refused)) {
	if raw, err := c.Refused.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = c.passOn(int(fd), tell) })
	}
}

// passOn passes on what the kernel has told so far. Nil means that there may be more, and
// unix.EAGAIN that there is no more yet.
func (c *Client) passOn(fd int, tell func(Refused)) error {
	c.telling.Lock()
	defer c.telling.Unlock()
	for range queued {
		n, err := unix.Read(fd, c.told[:])
		switch {
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		default:
			eachRefused(c.told[:n], tell)
		}
	}
	return nil
}

// eachRefused reads the kernel's messages, each about one packet.
func eachRefused(b []byte, tell func(Refused)) {
	const packet, payload, header = 4 << 8, 9, unix.NLMSG_HDRLEN + 4
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint32(b))
		if size < header || size > len(b) {
			return
		}
		if binary.NativeEndian.Uint16(b[4:]) == packet {
			if r, ok := refusedIn(attribute(b[header:size], payload)); ok {
				tell(r)
			}
		}
		b = b[min((size+3)&^3, len(b)):]
	}
}

// attribute returns the content of the first attribute of a kind.
func attribute(b []byte, kind uint16) []byte {
	const head = 4
	for len(b) >= head {
		size := int(binary.NativeEndian.Uint16(b))
		if size < head || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:]) == kind {
			return b[head:size]
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return nil
}

// refusedIn reads the beginning of an IPv4 packet.
func refusedIn(p []byte) (r Refused, ok bool) {
	const shortest, ports = 20, 4
	if len(p) < shortest || p[0]>>4 != 4 {
		return r, false
	}
	head := int(p[0]&0xf) * 4
	if head < shortest || len(p) < head+ports {
		return r, false
	}
	to := netip.AddrFrom4([4]byte(p[16:20]))
	return Refused{
		From: netip.AddrFrom4([4]byte(p[12:16])), UDP: p[9] == unix.IPPROTO_UDP,
		To: netip.AddrPortFrom(to, binary.BigEndian.Uint16(p[head+2:])),
	}, true
}
