package gateway

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// However many processors the host has, and with as many ports as there may be, all sockets go into one message.
func TestAllSocketsAreHandedOver(t *testing.T) {
	cfg := good()
	cfg.Ports = nil
	for i := range MaxPorts {
		cfg.Ports = append(cfg.Ports, uint16(1000+i))
	}
	gate := newSpace(t)
	lo, err := gate.net.LinkByName("lo")
	must(t, err)
	must(t, gate.net.LinkSetUp(lo))
	must(t, gate.net.AddrAdd(lo, &netlink.Addr{IPNet: host(cfg.Address)}))
	var opened *sockets
	must(t, gate.in(func() (err error) {
		opened, err = openSockets(t.Context(), cfg, 1024)
		return err
	}))
	defer func() { must(t, opened.close()) }()
	s := &server{sockets: opened, self: os.Stdin}
	_, rights, err := s.do(request{Do: doOpen})
	must(t, err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer func() { must(t, errors.Join(unix.Close(pair[0]), unix.Close(pair[1]))) }()
	if err := unix.Sendmsg(pair[0], []byte("{}"), rights, nil, 0); err != nil {
		t.Errorf("%d sockets for DNS and %d others: %v", len(opened.udp), len(opened.tcp), err)
	}
}
