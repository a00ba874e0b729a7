package egress

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A testNetns is a network namespace and a thread in it, which the kernel takes for a process.
type testNetns struct {
	space  netns.NsHandle
	thread int
	net    *netlink.Handle
}

func newTestNetns(t *testing.T) testNetns {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	var s testNetns
	var err error
	ready, done := make(chan struct{}), make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		s.space, err = netns.New()
		s.thread = unix.Gettid()
		close(ready)
		<-done
	}()
	<-ready
	t.Cleanup(func() { close(done) })
	must(t, err)
	t.Cleanup(func() { must(t, s.space.Close()) })
	s.net, err = netlink.NewHandleAt(s.space)
	must(t, err)
	t.Cleanup(s.net.Close)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s testNetns) bridge(t *testing.T, name string) int {
	t.Helper()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	must(t, s.net.LinkAdd(bridge))
	return bridge.Attrs().Index
}

// veth gives peer an interface whose other end is here.
func (s testNetns) veth(t *testing.T, port string, master int, peer testNetns, inside string) {
	t.Helper()
	must(t, s.net.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: port, MasterIndex: master}, PeerName: inside, PeerNamespace: netlink.NsFd(int(peer.space)),
	}))
}

// within runs what asks the kernel about this namespace.
func (s testNetns) within(ask func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(s.space)
		if err == nil {
			err = ask()
		}
		done <- err
	}()
	return <-done
}

// port is what vethOf says in this namespace.
func (s testNetns) port(of testNetns, bridge string) (name string, err error) {
	err = s.within(func() error {
		l, err := openInterfaces()
		if err == nil {
			defer l.close()
			name, err = l.vethOf(of.thread, bridge)
		}
		return err
	})
	return name, err
}

func TestVethOf(t *testing.T) {
	host, first, second, stranger, alone := newTestNetns(t), newTestNetns(t), newTestNetns(t), newTestNetns(t), newTestNetns(t)
	ours := host.bridge(t, "ours")
	theirs := host.bridge(t, "theirs")
	host.veth(t, "veth1", ours, first, "eth0")
	host.veth(t, "veth2", ours, second, "eth0")
	host.veth(t, "veth3", theirs, second, "eth1")
	host.veth(t, "veth4", theirs, stranger, "eth0")
	host.veth(t, "veth5", 0, stranger, "eth1")
	// A pair whose ends are both inside: on the host its numbers are those of others.
	for i := range 8 {
		must(t, first.net.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("here", i)}, PeerName: fmt.Sprint("there", i)}))
	}
	for _, tt := range []struct {
		name   string
		of     testNetns
		bridge string
		want   string // empty: not found
	}{
		{"one", first, "ours", "veth1"},
		{"another", second, "ours", "veth2"},
		{"of two bridges", second, "theirs", "veth3"},
		{"of another bridge", stranger, "ours", ""},
		{"of no bridge", first, "theirs", ""},
		{"without interfaces", alone, "ours", ""},
		{"the host itself", host, "ours", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := host.port(tt.of, tt.bridge)
			if tt.want == "" && !errdefs.IsNotFound(err) {
				t.Errorf("found %q, %v", got, err)
			}
			if tt.want != "" && (got != tt.want || err != nil) {
				t.Errorf("found %q, %v; want %q", got, err, tt.want)
			}
		})
	}
	if _, err := host.port(first, "missing"); err == nil || errdefs.IsNotFound(err) {
		t.Errorf("without the bridge: %v", err)
	}
}
