package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sleeps starts a program in a network namespace of its own.
func sleeps(t *testing.T) (pid int) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatalf("a namespace needs root: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process.Pid
}

// bundleOf writes a bundle as a shim has it before a start.
func bundleOf(t *testing.T, pid int, l link) (dir string) {
	t.Helper()
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{"process": map[string]any{"env": []string{"A=b", linkVariable + "=" + string(text)}}})
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for name, text := range map[string][]byte{"config.json": config, "init.pid": []byte(fmt.Sprint(pid))} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// in has a handle in the network namespace of a process.
func in(t *testing.T, pid int, do func(*netlink.Handle)) {
	t.Helper()
	out := make(chan error)
	go func() { // the thread ends, with its namespace
		space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil {
			defer space.Close()
			runtime.LockOSThread()
			err = unix.Setns(int(space.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			out <- err
			return
		}
		kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err == nil {
			defer kernel.Close()
			do(kernel)
		}
		out <- err
	}()
	if err := <-out; err != nil {
		t.Error(err)
	}
}

// The interface is in the container, up, with its address and route; its other end is in the gateway and down. A namespace that is
// not the gateway's, and a bundle without a link, get nothing.
func TestAContainerIsConnected(t *testing.T) {
	gateway, inside := sleeps(t), sleeps(t)
	open := func(pid int) (path string, inode uint64) {
		t.Helper()
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), info.Sys().(*syscall.Stat_t).Ino
	}
	space, inode := open(gateway)
	pipe, end, err := os.Pipe() // to open one would wait for a writer
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	_ = end.Close()
	l := link{Space: space, Inode: inode, Name: "to0a010503", MAC: "02:42:0a:01:05:03",
		Addr: netip.MustParsePrefix("10.1.5.3/22"), Gateway: netip.MustParseAddr("10.1.4.1")}
	for name, tt := range map[string]struct {
		change func(*link)
		fault  string
	}{
		"another namespace": {func(l *link) { l.Inode++ }, "is not the gateway's network namespace any more"},
		"the host's":        {func(l *link) { l.Space, l.Inode = open(os.Getpid()) }, "no network namespace of its own"},
		"no gateway":        {func(l *link) { l.Space = "/proc/0/fd/1" }, "is not the gateway's network namespace any more"},
		"a pipe":            {func(l *link) { l.Space = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), pipe.Fd()) }, "is not the gateway's network namespace any more"},
		"somebody's":        {func(l *link) { l.Space = "/proc/1/ns/net" }, "none of sandboxd's"},
		"another name":      {func(l *link) { l.Name = "ve-host" }, "none of sandboxd's"},
		"no address":        {func(l *link) { l.Addr = netip.Prefix{} }, "none of sandboxd's"},
		"IPv6":              {func(l *link) { l.Addr = netip.MustParsePrefix("fd00::1/64") }, "none of sandboxd's"},
	} {
		other := l
		tt.change(&other)
		if err := connect(bundleOf(t, inside, other), "/proc"); err == nil || !strings.Contains(err.Error(), tt.fault) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, pid := range []int{os.Getpid(), gateway} {
		if err := connect(bundleOf(t, pid, l), "/proc"); err == nil || !strings.Contains(err.Error(), "no network namespace of its own") {
			t.Errorf("a process in another's namespace: %v", err)
		}
	}
	if err := connect(bundleOf(t, inside, l), "/proc"); err != nil {
		t.Fatal(err)
	}
	in(t, inside, func(kernel *netlink.Handle) {
		eth0, err := kernel.LinkByName("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		addrs, err := kernel.AddrList(eth0, netlink.FAMILY_ALL)
		routes, routesErr := kernel.RouteList(eth0, netlink.FAMILY_V4)
		if a := eth0.Attrs(); a.HardwareAddr.String() != l.MAC || a.RawFlags&unix.IFF_UP == 0 || err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != "10.1.5.3/22" {
			t.Errorf("%+v, %v, %v", a, addrs, err)
		}
		if routesErr != nil || len(routes) != 2 || routes[0].Gw.String() != "10.1.4.1" {
			t.Errorf("%v, %v", routes, routesErr)
		}
		lo, err := kernel.LinkByName("lo")
		if err != nil || lo.Attrs().RawFlags&unix.IFF_UP == 0 {
			t.Errorf("%v", err)
			return
		}
		if own, err := kernel.AddrList(lo, netlink.FAMILY_ALL); err != nil || len(own) != 1 || own[0].IPNet.String() != "127.0.0.1/8" {
			t.Errorf("%v, %v", own, err)
		}
	})
	in(t, gateway, func(kernel *netlink.Handle) {
		if end, err := kernel.LinkByName(l.Name); err != nil || end.Type() != "veth" || end.Attrs().RawFlags&unix.IFF_UP != 0 {
			t.Errorf("%v, %v", end, err)
		}
	})
	if err := connect(bundleOf(t, sleeps(t), l), "/proc"); err == nil || !strings.Contains(err.Error(), "cannot make interface") {
		t.Errorf("a second one by that name: %v", err)
	}
	bare := t.TempDir()
	if err := os.WriteFile(filepath.Join(bare, "config.json"), []byte(`{"process":{"env":["A=b"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := connect(bare, "/proc"); err == nil || !strings.Contains(err.Error(), "for containers that sandboxd makes") {
		t.Errorf("without a link: %v", err)
	}
}
