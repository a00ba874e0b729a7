package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/dockerexec"
	"github.com/daycare-run/sandbox/internal/egress"
	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// registering is what it takes that a container may reach its names, and that it may not any more.
type registering struct {
	// Others is how many containers are registered meanwhile.
	Others int
	// Add is before the container is made, Bind when it has started, Remove when it is gone; All is
	// their sum, each time, and AddRemove the sum without Bind.
	Add, Bind, Remove, AddRemove, All sample
}

// registerCrowds are how many others there are.
var registerCrowds = []int{0, 999}

// registerPause is between one container and the next, as it is where an engine makes them: what the kernel
// tracks of the one before is forgotten meanwhile.
const registerPause = 5 * time.Millisecond

// registerPlan is what the helper measures.
type registerPlan struct {
	Others, Count int
	Dir           string
}

// measureRegistering lets a process with a network of its own measure: real rules, and nothing of this
// host's.
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
const registerBridge = "bench-iso"

var (
	registerSubnet  = netip.MustParsePrefix("10.213.0.0/22")
	registerGateway = registerSubnet.Addr().Next()
	registerMAC     = net.HardwareAddr{2, 0x42, 10, 213, 0, 9}
)

// runRegistering is the helper's side.
func runRegistering(ctx context.Context, text string, stdout io.Writer) error {
	var plan registerPlan
	if err := readPlan(text, &plan); err != nil {
		return err
	}
	bridge, err := makeBridge()
	if err != nil {
		return err
	}
	networks, err := egress.New(egress.Config{
		Name: "bench", Dir: plan.Dir,
		Profiles:         map[string]egress.Profile{profileName: {Upstreams: []string{"127.0.0.1"}}},
		Subnets:          []netip.Prefix{registerSubnet},
		QueriesPerSecond: 200, MaxConnections: 4096,
		Decisions: decisions.New(10_000), Log: zerolog.Nop(),
	})
	if err != nil {
		return err
	}
	defer networks.Shutdown()
	if err := networks.Open(ctx, dockerexec.Network{Profile: profileName, Bridge: registerBridge, Subnet: registerSubnet, Gateway: registerGateway}, nil); err != nil {
		return err
	}
	found := registering{Others: plan.Others}
	pid, err := populate(networks, bridge, plan.Others)
	if err != nil {
		return err
	}
	if err := leaveFlow(); err != nil {
		return err
	}
	for i := range plan.Count + decidingWarmUps/10 {
		into := &found
		if i < decidingWarmUps/10 {
			into = &registering{}
		}
		if err := into.once(networks, benchSpec(fmt.Sprint("new-", i)), pid); err != nil {
			return err
		}
		time.Sleep(registerPause)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return answer(stdout, found)
}

// once registers a container and removes it.
func (r *registering) once(networks *egress.Egress, spec dockerexec.Spec, pid int) error {
	begun := time.Now()
	addr, err := networks.Add(spec)
	if err != nil {
		return err
	}
	added := time.Now()
	if err := networks.Bind(dockerexec.Endpoint{Spec: spec, Addr: addr, MAC: registerMAC, PID: pid}); err != nil {
		return err
	}
	bound := time.Now()
	networks.Remove(profileName, addr)
	ended := time.Now()
	r.Add, r.Bind, r.Remove = append(r.Add, added.Sub(begun)), append(r.Bind, bound.Sub(added)), append(r.Remove, ended.Sub(bound))
	r.AddRemove, r.All = append(r.AddRemove, added.Sub(begun)+ended.Sub(bound)), append(r.All, ended.Sub(begun))
	return nil
}

// benchSpec is of a container that may reach ten names.
func benchSpec(user string) dockerexec.Spec {
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("host%d.bench.example", i))
	}
	return dockerexec.Spec{User: user, Egress: dockerexec.Egress{Profile: profileName, Domains: names}}
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

// populate registers the others and gives each a port of the bridge, and another port to the container
// that comes and goes. It returns the number of a thread in the latter's namespace.
func populate(networks *egress.Egress, bridge netlink.Link, others int) (thread int, err error) {
	crowd, _, err := newSpace()
	if err != nil {
		return 0, err
	}
	space, thread, err := newSpace()
	if err != nil {
		return 0, err
	}
	for i := range others {
		if _, err := networks.Add(benchSpec(fmt.Sprint("other-", i))); err != nil {
			return 0, err
		}
		if err := addPort(bridge, fmt.Sprint("other", i), crowd); err != nil {
			return 0, err
		}
	}
	return thread, addPort(bridge, "guest", space)
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
		select {} // keeps the thread
	}()
	<-done
	if err != nil {
		err = fmt.Errorf("cannot make a network namespace: %w", err)
	}
	return space, thread, err
}

// leaveFlow makes the kernel track a flow: an empty table of connections is not searched.
func leaveFlow() error {
	question := new(dns.Msg).SetQuestion("bench.example.", dns.TypeA)
	_, _, err := new(dns.Client).Exchange(question, netip.AddrPortFrom(registerGateway, 53).String())
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return nil // nobody is known there; the flow is
	}
	return err
}
