package guard

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inside runs f in a network namespace, on a thread that ends with it.
func inside(t *testing.T, path string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is not used again
		ns, err := os.Open(path)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func run(t *testing.T, stdin string, argv ...string) {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// twoNamespaces makes one for the guard, at 198.51.100.1, and one for the container, at .2.
func twoNamespaces(t *testing.T) (string, string) {
	t.Helper()
	host, box := fmt.Sprintf("guard-h%d", os.Getpid()), fmt.Sprintf("guard-b%d", os.Getpid())
	for _, ns := range []string{host, box} {
		run(t, "", "ip", "netns", "add", ns)
		t.Cleanup(func() { run(t, "", "ip", "netns", "del", ns) })
		run(t, "", "ip", "-n", ns, "link", "set", "lo", "up")
	}
	run(t, "", "ip", "-n", host, "link", "add", "v0", "type", "veth", "peer", "name", "eth0", "netns", box)
	run(t, "", "ip", "-n", host, "addr", "add", "198.51.100.1/24", "dev", "v0")
	run(t, "", "ip", "-n", box, "addr", "add", "198.51.100.2/24", "dev", "eth0")
	run(t, "", "ip", "-n", host, "link", "set", "v0", "up")
	run(t, "", "ip", "-n", box, "link", "set", "eth0", "up")
	run(t, "", "ip", "-n", box, "route", "add", "default", "via", "198.51.100.1")
	return host, box
}

// TestRealRedirect is the guard behind nftables, in namespaces of its own: what a program dials
// outside comes here, and conntrack tells from where.
func TestRealRedirect(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes network namespaces: run it as root")
	}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("this test needs %s: apt-get install iproute2 nftables", tool)
		}
	}
	host, box := twoNamespaces(t)
	origin := httpOriginText(t, "hello")
	var secure, plain *net.TCPListener
	inside(t, "/run/netns/"+host, func() (err error) {
		gateway := &net.TCPAddr{IP: net.IPv4(198, 51, 100, 1)}
		if secure, err = net.ListenTCP("tcp4", gateway); err == nil {
			plain, err = net.ListenTCP("tcp4", gateway)
		}
		return err
	})
	run(t, fmt.Sprintf(`table ip guard { chain pre { type nat hook prerouting priority dstnat;
		iifname "v0" ip daddr != 198.51.100.1 tcp dport 443 redirect to :%d
		iifname "v0" ip daddr != 198.51.100.1 tcp dport { %d, 8080 } redirect to :%d
		}
	}`,
		portOf(secure), origin, portOf(plain)), "ip", "netns", "exec", host, "nft", "-f", "-")
	r := newRig(t, 443, origin, func(c *Config) {
		c.TLS.Listener, c.HTTP.Listener, c.Dialled = secure, plain, nil
		c.Client = clientAt(c.Client, "198.51.100.2")
	})
	talk := func(to string) (got string) {
		inside(t, "/run/netns/"+box, func() error {
			c, err := net.Dial("tcp4", to)
			if err != nil {
				return nil // reset at once, which is an answer as well
			}
			defer func() { _ = c.Close() }()
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.example\r\nConnection: close\r\n\r\n")
			got = readAll(c)
			return nil
		})
		return got
	}
	if got := talk(fmt.Sprintf("203.0.113.7:%d", origin)); !strings.HasSuffix(got, "hello") {
		t.Errorf("redirected: %q", got)
	}
	r.decided(Allowed, "allowed.example", reasonAllowed)
	if got := talk("203.0.113.7:443"); got != "" {
		t.Errorf("HTTP on the TLS port: %q", got)
	}
	r.decided(Malformed, "", reasonNotTLS)
	for what, to := range map[string]string{"direct": plain.Addr().String(), "another port": "203.0.113.7:8080"} {
		if got := talk(to); got != "" {
			t.Errorf("%s: %q", what, got)
		}
		r.decided(Denied, "", reasonDirect)
	}
}

// clientAt moves the client of a rig to another address.
func clientAt(known func(netip.Addr) (Client, bool), addr string) func(netip.Addr) (Client, bool) {
	return func(a netip.Addr) (Client, bool) {
		if a.String() != addr {
			return nil, false
		}
		return known(loopback)
	}
}
