package inet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A space is the namespace and what joins it to the host.
type space struct {
	name         string
	host, inside netns.NsHandle
	pair         netip.Prefix
	lock         *os.File // on the namespace's name, for as long as this process uses it
}

// mark is the alias of the host's links that are ours.
const mark = "daycare e2e/inet"

const insideLink = "eth0"

// ways are the ranges that the namespace answers to.
var ways = []string{
	"10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16",
	"192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
}

// In IPv6, which is set up when an extra address needs it, the pair is link-local.
var (
	ways6          = []string{"fc00::/7", "2001:db8::/32"}
	host6, inside6 = netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
)

// newSpace makes the namespace with all its addresses and the host's routes to them, or nothing.
func newSpace(ctx context.Context, cfg Config) (_ *space, err error) {
	unlock, err := lockNames(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s := &space{name: cfg.Name, host: netns.None(), inside: netns.None()}
	if s.host, err = netns.Get(); err != nil {
		return nil, err
	}
	host, err := netlink.NewHandleAt(s.host)
	if err != nil {
		return nil, errors.Join(err, s.host.Close())
	}
	defer host.Close()
	if err = removeStale(host, cfg.Name); err == nil {
		err = cfg.settle(host)
	}
	if err != nil {
		return nil, errors.Join(err, s.host.Close())
	}
	s.pair = cfg.Pair
	if err = s.create(ctx, host, cfg); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *space) create(ctx context.Context, host *netlink.Handle, cfg Config) error {
	if err := on(s.host, func() (err error) {
		s.inside, err = netns.NewNamed(s.name)
		return err
	}); err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	var err error
	if s.lock, err = lockName(s.name); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(s.inside)
	if err != nil {
		return err
	}
	defer inside.Close()
	if err := host.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: s.name}, PeerName: insideLink,
		PeerNamespace: netlink.NsFd(int(s.inside)),
	}); err != nil {
		return fmt.Errorf("veth pair: %w", err)
	}
	out, in, lo := end{handle: host}, end{handle: inside}, end{handle: inside}
	if err := errors.Join(out.find(s.name), in.find(insideLink), lo.find("lo")); err != nil {
		return err
	}
	if err := host.LinkSetAlias(out.link, mark); err != nil {
		return err
	}
	if err := join(out, in, lo, cfg); err != nil {
		return err
	}
	return errors.Join(out.ready(ctx), in.ready(ctx))
}

// join gives the ends their addresses and routes.
func join(out, in, lo end, cfg Config) error {
	near, far := nth(cfg.Pair, 1), nth(cfg.Pair, 2)
	faults := []error{
		out.address(near, 30), in.address(far, 30),
		// On a loopback interface, a range is local as a whole.
		lo.address(nth(cfg.Public, 1), cfg.Public.Bits()),
		out.route(cfg.Public, far),
	}
	for _, way := range ways {
		faults = append(faults, in.route(netip.MustParsePrefix(way), near))
	}
	if slices.ContainsFunc(cfg.Extra, netip.Addr.Is6) {
		faults = append(faults, out.address(host6, 64), in.address(inside6, 64))
		for _, way := range ways6 {
			faults = append(faults, in.route(netip.MustParsePrefix(way), host6))
		}
	}
	for _, addr := range cfg.Extra {
		gateway := far
		if addr.Is6() {
			gateway = inside6
		}
		faults = append(faults, lo.address(addr, addr.BitLen()),
			out.route(netip.PrefixFrom(addr, addr.BitLen()), gateway))
	}
	return errors.Join(faults...)
}

// close removes what there is. Sockets that are still open keep the namespace alive, but nothing
// reaches them.
func (s *space) close() error {
	var faults []error
	if host, err := netlink.NewHandleAt(s.host); err != nil {
		faults = append(faults, err)
	} else {
		faults = append(faults, removeLink(host, s.name))
		host.Close()
	}
	if s.inside.IsOpen() {
		faults = append(faults, removeName(s.name), s.inside.Close())
	}
	if s.lock != nil {
		faults = append(faults, s.lock.Close())
	}
	return errors.Join(append(faults, s.host.Close())...)
}

// on runs f on a thread of its own in the namespace, where what it opens stays.
func on(ns netns.NsHandle, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// An end is a link, with the means to set it up.
type end struct {
	handle *netlink.Handle
	link   netlink.Link
}

// find finds the link and takes it up.
func (e *end) find(name string) (err error) {
	if e.link, err = e.handle.LinkByName(name); err != nil {
		return err
	}
	return e.handle.LinkSetUp(e.link)
}

// ready waits, for milliseconds, until the kernel has noticed that the other end is up as well.
// Until then it drops what is sent.
func (e end) ready(ctx context.Context) error {
	return retry(ctx, func() (done bool, err error) {
		link, err := e.handle.LinkByIndex(e.link.Attrs().Index)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
}

func (e end) address(addr netip.Addr, bits int) error {
	a := &netlink.Addr{IPNet: toIPNet(netip.PrefixFrom(addr, bits)), Flags: unix.IFA_F_NODAD}
	if err := e.handle.AddrReplace(e.link, a); err != nil {
		return fmt.Errorf("address %s: %w", addr, err)
	}
	return nil
}

func (e end) route(to netip.Prefix, via netip.Addr) error {
	r := &netlink.Route{LinkIndex: e.link.Attrs().Index, Dst: toIPNet(to), Gw: via.AsSlice()}
	if err := e.handle.RouteAdd(r); err != nil {
		return fmt.Errorf("route to %s: %w", to, err)
	}
	return nil
}
