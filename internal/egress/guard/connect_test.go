package guard

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

func TestOnlyPublicAddressesAreConnectedTo(t *testing.T) {
	port, origin := rawOrigin(t)
	var answer atomic.Value
	r := newRig(t, port, port, func(c *Config) {
		fakes(c).resolve = func(context.Context, string) ([]netip.Addr, error) {
			return answer.Load().([]netip.Addr), nil
		}
		fakes(c).mayConnect = func(a netip.Addr) bool { return a == netip.MustParseAddr("127.0.0.3") || a.Is6() }
		c.Limits.ConnectTimeout = patience
	})
	addr := netip.MustParseAddr
	for _, addrs := range [][]netip.Addr{
		{addr("127.0.0.1")}, {addr("::ffff:127.0.0.1")}, {addr("169.254.169.254"), addr("127.0.0.1")}, {{}}, {addr("fe80::1%lo")}, {addr("::1")},
	} {
		answer.Store(addrs)
		if _, err := hands(r, &tls.Config{ServerName: "allowed.example"}); err == nil || !strings.Contains(err.Error(), "access denied") {
			t.Errorf("%v: %v", addrs, err)
		}
		r.decided(decisions.Denied, "allowed.example", reasonNotPublic)
		if status, body := ask(r, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n"); status != 403 || !strings.Contains(body, reasonNotPublic) {
			t.Errorf("%v: %d %s", addrs, status, body)
		}
		r.decided(decisions.Denied, "allowed.example", reasonNotPublic)
	}
	// Nobody listens at the one that is allowed, and the next is not taken instead.
	answer.Store([]netip.Addr{addr("127.0.0.3"), addr("127.0.0.1")})
	if _, err := hands(r, &tls.Config{ServerName: "allowed.example"}); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("refused: %v", err)
	}
	r.decided(decisions.Failed, "allowed.example", reasonUnreachable)
	if len(origin) > 0 {
		t.Error("something reached the origin")
	}
}

func TestTheNextAddressIsTried(t *testing.T) {
	o := newTLSOrigin(t, echo, nil)
	r := newRig(t, o.port, 0, func(c *Config) {
		fakes(c).resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.3"), netip.MustParseAddr("::ffff:127.0.0.1")}, nil
		}
		fakes(c).mayConnect = func(netip.Addr) bool { return true }
	})
	if _, err := hands(r, &tls.Config{ServerName: "allowed.example"}); err != nil {
		t.Error(err)
	}
}

func TestFailuresArePrompt(t *testing.T) {
	gone := listen(t)
	_ = gone.Close()
	nobody := errors.New("SERVFAIL")
	for what, c := range map[string]struct {
		change func(*Config)
		reason string
		status int
	}{
		"nobody listens": {nil, reasonUnreachable, 502},
		"no answer": {func(c *Config) {
			fakes(c).resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, nobody }
		}, reasonUnresolved, 502},
		"no address": {func(c *Config) {
			fakes(c).resolve = func(context.Context, string) ([]netip.Addr, error) { return nil, nil }
		}, reasonUnresolved, 502},
		"a resolver that hangs": {func(c *Config) {
			c.Limits.ResolveTimeout = 20 * time.Millisecond
			fakes(c).resolve = func(ctx context.Context, _ string) ([]netip.Addr, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}, reasonUnresolved, 502},
	} {
		r := newRig(t, portOf(gone), portOf(gone), c.change)
		if _, err := hands(r, &tls.Config{ServerName: "allowed.example"}); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
		r.decided(decisions.Failed, "allowed.example", c.reason)
		if status, body := ask(r, "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n"); status != c.status || !strings.Contains(body, c.reason) {
			t.Errorf("%s: %d %s", what, status, body)
		}
		r.decided(decisions.Failed, "allowed.example", c.reason)
	}
}

// The origin gets the hello with the packet that completes TCP's handshake: it is woken once.
func TestTheFirstWordsCompleteTheHandshake(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, nil)
	hello := records(message(named("allowed.example")), maxRecord)
	segments := func(to string) uint32 {
		t.Helper()
		if _, err := dial(t, to).Write(hello); err != nil {
			t.Fatal(err)
		}
		o := take(t, origin)
		if _, err := io.ReadFull(o, make([]byte, len(hello))); err != nil {
			t.Fatal(err)
		}
		raw, err := o.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var info *unix.TCPInfo
		var failed error
		if err := errors.Join(raw.Control(func(fd uintptr) {
			info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		}), failed); err != nil {
			t.Fatal(err)
		}
		return info.Segs_in
	}
	direct := segments(netip.AddrPortFrom(loopback, port).String())
	if guarded := segments(r.tls); guarded != direct-1 {
		t.Errorf("%d segments came by the guard, and %d directly", guarded, direct)
	}
}
