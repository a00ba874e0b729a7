package forward

import (
	"crypto/tls"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// Whoever has no certificate of a host's takes no more than a share of few places: others are let in, and its further
// connections are ended.
func TestStrangersTakeFewPlaces(t *testing.T) {
	dir := t.TempDir() + "/certificates"
	if err := MakeAuthority(dir); err != nil {
		t.Fatal(err)
	}
	if err := Issue(dir, "h1", "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	certificates, err := ReadCertificates(filepath.Join(dir, AuthorityFile), filepath.Join(dir, "h1.crt"), filepath.Join(dir, "h1.key"))
	if err != nil {
		t.Fatal(err)
	}
	under, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := certificates.Listen(under)
	defer listener.Close()
	places := listener.(*hostsOnly).unproved
	for places.Stats().Refused == 0 {
		before := places.Stats().Used
		conn, err := net.Dial("tcp", under.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		waittest.Until(t, "it has a place or not", func() bool { now := places.Stats(); return now.Used > before || now.Refused > 0 })
		if places.Stats().Refused == 0 {
			continue
		}
		if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a connection too many: %v", err)
		}
	}
	if used := places.Stats().Used; used > maxUnproved/4 {
		t.Errorf("one address has %d places", used)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: 10 * time.Second}
	host, err := tls.DialWithDialer(&dialer, "tcp", under.Addr().String(), certificates.Client("h1"))
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if state := conn.(*tls.Conn).ConnectionState(); len(state.VerifiedChains) == 0 {
		t.Errorf("%+v", state)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := listener.Accept(); err == nil {
		t.Error("it listens on")
	}
}
