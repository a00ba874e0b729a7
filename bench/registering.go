package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec/networks"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
	"github.com/daycare-run/sandbox/internal/egress/gateway"
)

// registering has the times to let a container reach its names, and to end that.
type registering struct {
	// Others is how many other containers are registered meanwhile.
	Others int
	// Add comes before the container is made, Bind when it has started, and Remove when it is gone.
	// All is the sum of the three, each time, and AddRemove the sum without Bind.
	Add, Bind, Remove, AddRemove, All sample
	// Move and Delete are the kernel's times to move such an interface into another namespace, and
	// to delete it there.
	Move, Delete sample
}

// registerCrowds has the numbers of other containers.
var registerCrowds = []int{0, 999}

// registerPause is the time between one container and the next. Docker makes them no faster.
const registerPause = 5 * time.Millisecond

// registerPlan is what the helper measures.
type registerPlan struct {
	Others, Count int
	Dir           string
}

// measureRegistering measures in a process with a network of its own: with real rules, and without
// touching this host's network.
func (l *lab) measureRegistering(ctx context.Context) ([]registering, error) {
	var all []registering
	for _, others := range registerCrowds {
		plan := registerPlan{Others: others, Count: l.settings.registrations, Dir: filepath.Join(l.dir, fmt.Sprint("register-", others))}
		h, err := startHelper(ctx, helpRegister, plan, unix.CLONE_NEWNET)
		if err != nil {
			return nil, err
		}
		var one registering
		if err := h.next(&one); err != nil {
			return nil, err
		}
		if err := h.stop(); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// The helper's network.
const (
	registerBridge = "bench-iso"
	registerHolder = uint64(1) // of the container that comes and goes
)

var (
	registerSubnet  = netip.MustParsePrefix("10.213.0.0/22")
	registerGateway = registerSubnet.Addr().Next()
	registerMAC     = net.HardwareAddr{2, 0x42, 10, 213, 0, 9}
)

// runRegistering is the helper that measures.
func runRegistering(ctx context.Context, text string, stdout io.Writer) (err error) {
	var plan registerPlan
	if err := readPlan(text, &plan); err != nil {
		return err
	}
	bridge, err := makeBridge()
	if err != nil {
		return err
	}
	filter, err := egress.New(egress.Config{
		Name: "bench", Dir: plan.Dir, GatewayDir: plan.Dir,
		Profiles:         map[string]egress.Profile{profileName: {Upstreams: []string{"127.0.0.1"}}},
		Subnets:          []netip.Prefix{registerSubnet},
		QueriesPerSecond: 200, MaxConnections: 4096,
		Decisions: decisions.New(10_000), Log: zerolog.Nop(),
	})
	if err != nil {
		return err
	}
	defer filter.Shutdown()
	network := networks.Network{Profile: profileName, Bridge: registerBridge, Subnet: registerSubnet, Gateway: registerGateway}
	filtered, err := startGateway(ctx, filter, &network)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, filtered.stop()) }()
	if err := filter.Open(ctx, network, nil); err != nil {
		return err
	}
	found := registering{Others: plan.Others}
	space, pid, err := populate(filter, bridge, plan.Others)
	if err != nil {
		return err
	}
	aside, _, err := newSpace()
	if err != nil {
		return err
	}
	for i := range plan.Count + decidingWarmUps/10 {
		into := &found
		if i < decidingWarmUps/10 {
			into = &registering{}
		}
		party := benchParty(fmt.Sprint("new-", i))
		if err := into.comeAndGo(filter, party, bridge, guest{space, aside, pid}); err != nil {
			return err
		}
		time.Sleep(registerPause)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return answer(stdout, found)
}

// guest is the namespace of the container that comes and goes, a thread in it, and another one to
// move interfaces to.
type guest struct {
	space, aside netns.NsHandle
	thread       int
}

// comeAndGo registers a container and removes it, with an interface of its own, and measures the
// floor with another.
func (r *registering) comeAndGo(filter *egress.Egress, party networks.Party, bridge netlink.Link, g guest) error {
	const port = "guest"
	if err := addPort(bridge, port, g.space); err != nil { // it goes away with the container
		return err
	}
	if err := r.once(filter, party, g.thread); err != nil {
		return err
	}
	if err := addPort(bridge, port, g.space); err != nil {
		return err
	}
	return r.floor(port, g.aside)
}

// once registers a container and removes it.
func (r *registering) once(filter *egress.Egress, party networks.Party, pid int) error {
	begun := time.Now()
	addr, err := filter.Add(party, registerHolder)
	if err != nil {
		return err
	}
	added := time.Now()
	if err := filter.Bind(networks.Endpoint{Party: party, Holder: registerHolder, Addr: addr, MAC: registerMAC, PID: pid}); err != nil {
		return err
	}
	bound := time.Now()
	filter.Remove(profileName, registerHolder)
	ended := time.Now()
	r.Add, r.Bind, r.Remove = append(r.Add, added.Sub(begun)), append(r.Bind, bound.Sub(added)), append(r.Remove, ended.Sub(bound))
	r.AddRemove, r.All = append(r.AddRemove, added.Sub(begun)+ended.Sub(bound)), append(r.All, ended.Sub(begun))
	return nil
}

// floor moves an interface into a namespace and deletes it.
func (r *registering) floor(name string, space netns.NsHandle) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	there, err := netlink.NewHandleAt(space)
	if err != nil {
		return err
	}
	defer there.Close()
	begun := time.Now()
	if err := netlink.LinkSetNsFd(link, int(space)); err != nil {
		return err
	}
	moved := time.Now()
	if link, err = there.LinkByName(name); err != nil {
		return err
	}
	found := time.Now()
	err = there.LinkDel(link)
	r.Move, r.Delete = append(r.Move, moved.Sub(begun)), append(r.Delete, time.Since(found))
	return err
}

// benchParty is a container that may reach ten names.
func benchParty(user string) networks.Party {
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("host%d.bench.example", i))
	}
	return networks.Party{Name: user, User: user, Egress: networks.Egress{Profile: profileName, Domains: names}}
}

func makeBridge() (netlink.Link, error) {
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: registerBridge}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return nil, fmt.Errorf("cannot make a bridge: %w", err)
	}
	addr, err := netlink.ParseAddr(netip.PrefixFrom(registerGateway, registerSubnet.Bits()).String())
	if err != nil {
		return nil, err
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	return bridge, errors.Join(netlink.AddrAdd(bridge, addr), netlink.LinkSetUp(bridge), netlink.LinkSetUp(loopback))
}

// populate registers the others and gives each a port of the bridge. It returns the namespace of
// the container that comes and goes, and a thread in it.
func populate(filter *egress.Egress, bridge netlink.Link, others int) (space netns.NsHandle, thread int, err error) {
	crowd, _, err := newSpace()
	if err != nil {
		return 0, 0, err
	}
	for i := range others {
		if _, err := filter.Add(benchParty(fmt.Sprint("other-", i)), registerHolder+1+uint64(i)); err != nil {
			return 0, 0, err
		}
		if err := addPort(bridge, fmt.Sprint("other", i), crowd); err != nil {
			return 0, 0, err
		}
	}
	return newSpace()
}

func addPort(bridge netlink.Link, name string, peer netns.NsHandle) error {
	port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index}, PeerName: name, PeerNamespace: netlink.NsFd(int(peer))}
	if err := netlink.LinkAdd(port); err != nil {
		return fmt.Errorf("cannot make a port of the bridge: %w", err)
	}
	return nil
}

// newSpace makes a network namespace that ends with the process, and a thread that stays in it.
func newSpace() (space netns.NsHandle, thread int, err error) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		space, err = netns.New()
		thread = unix.Gettid()
		close(done)
		select {} // keeps the thread alive
	}()
	<-done
	if err != nil {
		err = fmt.Errorf("cannot make a network namespace: %w", err)
	}
	return space, thread, err
}

// gatewayPlan is the plan of the gateway's helper.
type gatewayPlan struct {
	Dir, Argument string
	Sysctls       map[string]string
}

// startGateway starts the gateway of a network in a namespace of its own, as Docker does in a
// container.
func startGateway(ctx context.Context, filter *egress.Egress, n *networks.Network) (*helper, error) {
	made, _, err := filter.Gateway(*n)
	if err != nil {
		return nil, err
	}
	n.GatewayDir = made.Dir
	if err := os.MkdirAll(made.Dir, 0o700); err != nil {
		return nil, err
	}
	// It ends when our end of its stdin is closed, not by ctx.
	return startHelper(context.WithoutCancel(ctx), helpGateway, gatewayPlan{made.Dir, made.Arguments[1], made.Sysctls}, unix.CLONE_NEWNET)
}

// runGateway is the helper that runs the gateway.
func runGateway(ctx context.Context, text string) error {
	var plan gatewayPlan
	if err := readPlan(text, &plan); err != nil {
		return err
	}
	for name, value := range plan.Sysctls {
		if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0); err != nil {
			return err
		}
	}
	cfg, err := gateway.Parse(plan.Argument)
	if err != nil {
		return err
	}
	return gateway.Serve(ctx, plan.Dir, cfg)
}
