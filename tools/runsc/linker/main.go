// Linker gives a gVisor container its network interface, in Docker's place: Docker gives such a
// container no network, which saves most of its part of a start. The freezer calls it, in the
// container's bundle, once runsc has created the container.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linkVariable has a link, as JSON, in the environment of a container's first program.
const linkVariable = "DAYCARE_LINK"

// link is a container's interface, whose other end is in another network namespace.
type link struct {
	// Space is a file of that namespace, and Inode the number that it must have.
	Space string `json:"space"`
	Inode uint64 `json:"inode"`
	// Name is the other end's.
	Name    string       `json:"name"`
	MAC     string       `json:"mac"`
	Addr    netip.Prefix `json:"addr"`
	Gateway netip.Addr   `json:"gateway"`
}

// What sandboxd says: a file of its own, and a name by which it knows an address.
var (
	spaces = regexp.MustCompile(`^/proc/[0-9]+/fd/[0-9]+$`)
	names  = regexp.MustCompile(`^to[0-9a-f]{8}$`)
)

func main() {
	if err := connect(".", "/proc"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// connect makes the interface of the container of a bundle that is about to be started: gVisor takes
// over what it finds then. The other end stays down, so nothing passes.
func connect(bundle, proc string) error {
	l, err := readLink(bundle)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(bundle, "init.pid"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return fmt.Errorf("init.pid has %q", text)
	}
	inside, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "ns/net"))
	if err != nil {
		return err
	}
	defer inside.Close()
	// Before it is opened: by now the service may have something else there, or nothing.
	if !l.isAt(os.Stat(l.Space)) {
		return fmt.Errorf("%s is not the gateway's network namespace any more", l.Space)
	}
	outside, err := os.OpenFile(l.Space, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer outside.Close()
	own, err := os.Stat(filepath.Join(proc, "self/ns/net"))
	if err != nil {
		return err
	}
	within, err := inside.Stat()
	if err != nil {
		return err
	}
	info, err := outside.Stat()
	if err != nil {
		return err
	}
	if os.SameFile(own, within) || os.SameFile(within, info) || os.SameFile(own, info) {
		return errors.New("the container, or its gateway, has no network namespace of its own")
	}
	if !l.isAt(info, nil) {
		return fmt.Errorf("%s is not the gateway's network namespace any more", l.Space)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends, with the namespace that it is in
		err := unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = l.make(outside)
		}
		done <- err
	}()
	return <-done
}

// isAt reports whether a file is the namespace that the service has named.
func (l link) isAt(info os.FileInfo, err error) bool {
	if err != nil {
		return false
	}
	stat, is := info.Sys().(*syscall.Stat_t)
	return is && stat.Ino == l.Inode
}

func readLink(bundle string) (l link, err error) {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return l, err
	}
	var config struct {
		Process struct {
			Env []string `json:"env"`
		} `json:"process"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return l, fmt.Errorf("config.json: %w", err)
	}
	for _, entry := range config.Process.Env {
		value, is := strings.CutPrefix(entry, linkVariable+"=")
		if !is {
			continue
		}
		if err := json.Unmarshal([]byte(value), &l); err != nil {
			return l, fmt.Errorf("%s: %w", linkVariable, err)
		}
		if !spaces.MatchString(l.Space) || l.Inode == 0 || !names.MatchString(l.Name) || !l.Addr.IsValid() || !l.Addr.Addr().Is4() || !l.Gateway.Is4() {
			return l, fmt.Errorf("%s is none of sandboxd's: %s", linkVariable, value)
		}
		return l, nil
	}
	return l, fmt.Errorf("the container has no %s: this runtime is for containers that sandboxd makes", linkVariable)
}

// make makes the interface in this thread's namespace, with its other end in outside.
func (l link) make(outside *os.File) error {
	mac, err := net.ParseMAC(l.MAC)
	if err != nil {
		return err
	}
	for _, which := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer kernel.Close()
	far := netlink.NewLinkAttrs()
	far.Name, far.Namespace = l.Name, netlink.NsFd(int(outside.Fd()))
	if err := kernel.LinkAdd(&netlink.Veth{LinkAttrs: far, PeerName: "eth0", PeerHardwareAddr: mac}); err != nil {
		return fmt.Errorf("cannot make interface %s: %w", l.Name, err)
	}
	for _, name := range []string{"lo", "eth0"} {
		near, err := kernel.LinkByName(name)
		if err != nil {
			return fmt.Errorf("cannot find %s: %w", name, err)
		}
		if name == "eth0" {
			address := &net.IPNet{IP: l.Addr.Addr().AsSlice(), Mask: net.CIDRMask(l.Addr.Bits(), 32)}
			if err := kernel.AddrAdd(near, &netlink.Addr{IPNet: address}); err != nil {
				return fmt.Errorf("cannot give %s the address %s: %w", name, l.Addr, err)
			}
		}
		if err := kernel.LinkSetUp(near); err != nil {
			return fmt.Errorf("cannot set %s up: %w", name, err)
		}
	}
	if err := kernel.RouteAdd(&netlink.Route{Gw: l.Gateway.AsSlice()}); err != nil {
		return fmt.Errorf("cannot route to %s: %w", l.Gateway, err)
	}
	return nil
}
