package guard

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/egress/decisions"
)

// hands shakes hands through the guard.
func hands(r *rig, cfg *tls.Config) (*tls.Conn, error) {
	cfg.RootCAs = trust()
	c := tls.Client(dial(r.t, r.tls), cfg)
	return c, c.Handshake()
}

func TestTwoVirtualHostsOnOneAddress(t *testing.T) {
	o := newTLSOrigin(t, echo, nil)
	r := newRig(t, o.port, 0, nil)
	for _, c := range []struct {
		sni, want string
	}{
		{"allowed.example", ""}, {"also.example", ""}, {"ALLOWED.example", ""},
		{"denied.example", "tls: access denied"}, {"sub.allowed.example", "tls: access denied"},
		{"", "tls: unrecognized name"}, {"192.0.2.1", "tls: unrecognized name"},
	} {
		conn, err := hands(r, &tls.Config{ServerName: c.sni, InsecureSkipVerify: c.sni == ""})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v, want %s", c.sni, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.sni, err)
			continue
		}
		said := make([]byte, 5)
		_, _ = conn.Write([]byte("hello"))
		if _, err := io.ReadFull(conn, said); err != nil || string(said) != "hello" {
			t.Errorf("%q: %q, %v", c.sni, said, err)
		}
	}
	if seen := o.names(); seen != "allowed.example also.example ALLOWED.example" {
		t.Errorf("the origin saw %s", seen)
	}
	r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	r.decided(decisions.Allowed, "also.example", reasonAllowed)
	r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	r.decided(decisions.Denied, "denied.example", reasonNotAllowed)
	r.decided(decisions.Denied, "sub.allowed.example", reasonNotAllowed)
	r.decided(decisions.Denied, "", reasonNoName)
	// crypto/tls sends no name when it is given an address.
	r.decided(decisions.Denied, "", reasonNoName)
	if allowed, denied := r.counted(decisions.Allowed), r.counted(decisions.Denied); allowed != 3 || denied != 4 {
		t.Errorf("%d were allowed, %d denied", allowed, denied)
	}
}

func TestAHelloInSegments(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, nil)
	c := dial(t, r.tls)
	sent := append(records(padded(64<<10), 16000), 23, 3, 3, 0, 1, 7) // with early data behind it
	for rest := sent; len(rest) > 0; {
		n := min(len(rest), 1448)
		if _, err := c.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	o := take(t, origin)
	got := make([]byte, len(sent)-6)
	if _, err := io.ReadFull(o, got); err != nil || !bytes.Equal(got, sent[:len(got)]) {
		t.Fatalf("what arrived differs (%v)", err)
	}
	// The rest waits for the server's answer, which here is an alert.
	_, _ = o.Write([]byte{21, 3, 3, 0, 2, 2, 40})
	got = make([]byte, 6)
	if _, err := io.ReadFull(o, got); err != nil || !bytes.Equal(got, sent[len(sent)-6:]) {
		t.Fatalf("%x arrived behind the hello (%v)", got, err)
	}
}

// What gives no name is told with what its client has probably meant.
func TestGarbageIsNamedByItsAddress(t *testing.T) {
	r := newRig(t, 0, 0, func(c *Config) { fakes(c).asked = func(at netip.Addr) string { return "at " + at.String() } })
	conn := dial(t, r.tls)
	_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n")
	_ = readAll(conn)
	r.decided(decisions.Malformed, "at 127.0.0.1", reasonNotTLS)
	conn = dial(t, r.http)
	_, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
	_ = readAll(conn)
	r.decided(decisions.Denied, "at 127.0.0.1", reasonNoName)
}

func TestGarbageOnTheTLSPort(t *testing.T) {
	port, origin := rawOrigin(t)
	patient := newRig(t, port, 0, nil)
	// Half a hello has to come within its time, or it would be silence.
	var sent chan<- bool
	impatient := newRig(t, port, 0, func(c *Config) { c.Limits.HelloTimeout, sent = time.Second, onceSent(c) })
	good := records(message(named("allowed.example")), maxRecord)
	alert := func(kind byte) string { return string([]byte{21, 3, 3, 0, 2, 2, kind}) }
	for _, c := range []struct {
		what, send string
		end        bool
		want       string
		verdict    decisions.Verdict
		reason     string
	}{
		{"HTTP", "GET / HTTP/1.1\r\nHost: allowed.example\r\n\r\n", false, "", decisions.Malformed, reasonNotTLS},
		{"SSLv2", "\x80\x2e\x01\x00\x02\x00\x15", false, "", decisions.Malformed, reasonNotTLS},
		{"half a hello, then silence", string(good[:30]), false, alert(alertDecodeError), decisions.Malformed, reasonTooSlow},
		{"half a hello, then the end", string(good[:30]), true, alert(alertDecodeError), decisions.Malformed, reasonCutShort},
		{"silence", "", false, "", decisions.Malformed, reasonTooSlow},
		{"two names", string(records(message(named("allowed.example", "also.example")), 99)), false, alert(alertDecodeError), decisions.Malformed, reasonBadHello},
		{"too much", string(records([]byte{1, 9, 0, 0}, 9)), false, alert(alertDecodeError), decisions.Malformed, reasonTooLarge},
	} {
		r := patient
		if c.reason == reasonTooSlow {
			r = impatient
		}
		conn := dial(t, r.tls)
		_, _ = io.WriteString(conn, c.send)
		if c.end {
			_ = conn.CloseWrite()
		}
		if r == impatient {
			sent <- true
		}
		if got := readAll(conn); got != c.want {
			t.Errorf("%s: answered %q", c.what, got)
		}
		_ = conn.Close()
		r.decided(c.verdict, "", c.reason)
	}
	_ = dial(t, patient.tls).Close()
	for _, r := range []*rig{patient, impatient} {
		eventually(t, "a connection stays", func() bool { return r.Open() == 0 })
		r.undecided()
	}
	if len(origin) > 0 {
		t.Error("something reached the origin")
	}
}

// TestARetriedHelloKeepsItsName: the second hello after a HelloRetryRequest is held to the first.
func TestARetriedHelloKeepsItsName(t *testing.T) {
	o := newTLSOrigin(t, echo, func(c *tls.Config) { c.CurvePreferences = []tls.CurveID{tls.CurveP384} })
	r := newRig(t, o.port, 0, nil)
	_, err := hands(r, &tls.Config{ServerName: "allowed.example", CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}})
	if err != nil {
		t.Fatalf("an honest retry: %v", err)
	}
	r.decided(decisions.Allowed, "allowed.example", reasonAllowed)

	port, origin := rawOrigin(t)
	r = newRig(t, port, 0, nil)
	c := dial(t, r.tls)
	first, second := records(message(named("allowed.example")), maxRecord), records(message(named("also.example")), maxRecord)
	// Both at once: the client knows what the server will say.
	_, _ = c.Write(append(bytes.Clone(first), second...))
	server := take(t, origin)
	if _, err := io.ReadFull(server, make([]byte, len(first))); err != nil {
		t.Fatal(err)
	}
	retry := append([]byte{22, 3, 3, 0, 42, 2, 0, 0, 38, 3, 3}, retryRandom...)
	_, _ = server.Write(retry)
	if got := readAll(server); got != "" {
		t.Errorf("the second hello arrived: %q", got)
	}
	r.decided(decisions.Allowed, "allowed.example", reasonAllowed)
	r.decided(decisions.Denied, "also.example", reasonOtherName)
}

func TestEndsArePassedOn(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, nil)
	begin := func() (*net.TCPConn, *net.TCPConn) {
		c := dial(t, r.tls)
		first := records(message(named("allowed.example")), maxRecord)
		_, _ = c.Write(first)
		o := take(t, origin)
		if _, err := io.ReadFull(o, make([]byte, len(first))); err != nil {
			t.Fatal(err)
		}
		_, _ = o.Write([]byte{21, 3, 3, 0, 2, 1, 0})
		if _, err := io.ReadFull(c, make([]byte, 7)); err != nil {
			t.Fatal(err)
		}
		return c, o
	}
	// flows says something one way after the other has ended.
	flows := func(to, from *net.TCPConn) {
		t.Helper()
		_, _ = io.WriteString(from, "still here")
		_ = from.CloseWrite()
		if got := readAll(to); got != "still here" {
			t.Errorf("%q arrived", got)
		}
	}
	c, o := begin()
	flows(o, c)
	flows(c, o)
	c, o = begin()
	flows(c, o)
	flows(o, c)
	c, o = begin()
	reset(o)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the origin's reset became %v", err)
	}
	c, o = begin()
	reset(c)
	if _, err := o.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client's reset became %v", err)
	}
	eventually(t, "connections stay", func() bool { return r.Open() == 0 })
}

func TestAHalfClosedConnectionMayNotIdle(t *testing.T) {
	port, origin := rawOrigin(t)
	r := newRig(t, port, 0, func(c *Config) { c.Limits.HalfClosedIdle = 50 * time.Millisecond })
	c := dial(t, r.tls)
	_, _ = c.Write(records(message(named("allowed.example")), maxRecord))
	o := take(t, origin)
	_, _ = o.Write([]byte{21, 3, 3, 0, 2, 1, 0})
	_ = o.CloseWrite()
	readAll(c)
	readAll(o)
	eventually(t, "the connection stays", func() bool { return r.Open() == 0 })
}
