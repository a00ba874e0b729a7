package guard

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// unanswering is an address of this machine that answers no connection: the kernel's queue for it is full.
func unanswering(t *testing.T, addr string, port uint16) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	to := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(port)}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	dial(t, to.String()) // a queue of 0 has room for one
}

func TestAnAddressThatDoesNotAnswer(t *testing.T) {
	o := newTLSOrigin(t, echo, nil)
	unanswering(t, "127.0.0.3", o.port)
	hanging, living := netip.MustParseAddr("127.0.0.3"), loopback
	const short = 80 * time.Millisecond
	for _, c := range []struct {
		addrs       []netip.Addr
		each, total time.Duration
		reaches     bool
	}{
		{[]netip.Addr{hanging, living}, 3 * time.Second, patience, true},                        // which takes some time, too
		{[]netip.Addr{hanging, hanging, hanging, living}, short, 100 * time.Millisecond, false}, // not within all that time
		{[]netip.Addr{hanging}, short, patience, false},
	} {
		r := newRig(t, o.port, 0, func(cfg *Config) {
			fakes(cfg).resolve = func(context.Context, string) ([]netip.Addr, error) { return c.addrs, nil }
			fakes(cfg).mayConnect = func(netip.Addr) bool { return true }
			cfg.Limits.ConnectTimeout, cfg.Limits.ConnectTotal = c.each, c.total
		})
		_, err := hands(r, &tls.Config{ServerName: "allowed.example"})
		if c.reaches {
			if err != nil {
				t.Errorf("%v: %v", c.addrs, err)
			}
			r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
			continue
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v: %v", c.addrs, err)
		}
		r.decided(decisions.Failed, "allowed.example", reasonUnreachable)
	}
}

func TestAServerThatDoesNotAnswer(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, func(c *Config) { c.Limits.AnswerTimeout = 50 * time.Millisecond })
	c := dial(t, r.tls)
	_, _ = c.Write(records(message(named("allowed.example")), maxRecord))
	o := take(t, origin)
	for what, end := range map[string]net.Conn{"client": c, "server": o} {
		if _, err := io.Copy(io.Discard, end); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the %s: %v", what, err)
		}
	}
	eventually(t, "the connection stays", func() bool { return r.Open() == 0 })
}

// What is known need not be asked for.
func TestAKnownName(t *testing.T) {
	o := newTLSOrigin(t, echo, nil)
	r := newRig(t, o.port, 0, func(c *Config) {
		fakes(c).known = func(name string) ([]netip.Addr, bool) {
			return []netip.Addr{loopback}, name == "allowed.example"
		}
		fakes(c).resolve = func(_ context.Context, name string) ([]netip.Addr, error) {
			if name == "allowed.example" {
				return nil, errors.New("asked for nevertheless")
			}
			return []netip.Addr{loopback}, nil
		}
	})
	for _, name := range []string{"allowed.example", "also.example"} {
		if _, err := hands(r, &tls.Config{ServerName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Peers that are gone are found by the kernel: nothing else ends a connection that is idle.
func TestBothEndsAreKeptAlive(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, nil)
	established(r, origin)
	sockets := 0
	r.sockets(func(fd int) {
		sockets++
		on, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		idle, _ := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		if on != 1 || idle != 60 {
			t.Errorf("keep-alive is %d after %d s", on, idle)
		}
	})
	if sockets != 2 {
		t.Errorf("%d sockets", sockets)
	}
}

// stuffed writes to one end of a connection, of which the other is not read, until no more is taken.
func stuffed(t *testing.T, to *net.TCPConn) int {
	t.Helper()
	all := pattern() // which takes its time, the first time
	taken := 0
	for idle := 0; idle < 4; idle++ { // one time proves nothing: it may have passed before anything was written
		_ = to.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		n, err := to.Write(all[taken:])
		if taken += n; !isTimeout(err) {
			t.Errorf("%d bytes went somewhere, though nobody reads: %v", taken, err)
			break
		}
		if n > 0 {
			idle = 0
		}
	}
	_ = to.SetWriteDeadline(time.Now().Add(patience))
	return taken
}

// pattern is more than all buffers hold, and no two MiB of it are alike.
var pattern = sync.OnceValue(func() []byte {
	all := make([]byte, 64<<20)
	for i := range all {
		all[i] = byte(i ^ i>>8 ^ i>>20)
	}
	return all
})

// TestBackpressure: a side that does not read holds the sender up, and then gets everything, in order.
func TestBackpressure(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, nil)
	c, o := established(r, origin)
	for _, way := range []struct {
		what     string
		from, to *net.TCPConn
	}{{"up", c, o}, {"down", o, c}} {
		sent := stuffed(t, way.from)
		done := make(chan error, 1)
		go func() {
			_, err := way.from.Write(pattern()[sent:])
			done <- errors.Join(err, way.from.CloseWrite())
		}()
		_ = way.to.SetReadDeadline(time.Now().Add(patience))
		got, err := io.ReadAll(way.to)
		if err := errors.Join(err, <-done); err != nil || !bytes.Equal(got, pattern()) {
			t.Errorf("%s: %d bytes arrived, %v", way.what, len(got), err)
		}
	}
}

// TestManyComeAtOnce: more than are accepted in one turn.
func TestManyComeAtOnce(t *testing.T) {
	const many = 100
	first, others := make(chan bool, 1), make(chan bool)
	first <- true
	r := newRig(t, 1, 0, func(c *Config) {
		known := fakes(c).client
		fakes(c).client = func(a netip.Addr) (Client, bool) {
			select {
			case <-first:
				<-others
			default:
			}
			return known(a)
		}
	})
	for range many {
		dial(t, r.tls)
	}
	close(others)
	eventually(t, "not all were accepted", func() bool { return r.Open() == many })
}
