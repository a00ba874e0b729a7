package api

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/daycare-run/sandbox/internal/waittest"
)

// TestBusyConnectionsCostOthersNothing has a caller fill its share, by its address or by its token, with requests that
// are not over. Whatever it opens then, the connection of another address that has not asked anything yet stays.
func TestBusyConnectionsCostOthersNothing(t *testing.T) {
	for name, token := range map[string]string{"without a token": "", "with a token": "many"} {
		t.Run(name, func(t *testing.T) {
			s := newSharedService(t, 40, nil)
			// busy is refused, or has a request whose answer or body is still to come.
			busy := func() (refused bool) {
				before := s.shared.Stats().Used
				conn := s.connectFrom("127.0.0.2")
				status := make(chan int, 1)
				if token != "" {
					go func() { status <- s.ask(conn, token, "POST /v1/sandboxes/a/exec", `{"command":"x"}`) }()
				} else {
					_, _ = io.WriteString(conn, "POST /v1/sandboxes/a/exec HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
					go func() { // the answer is withheld until the body has come or is late
						_, _ = conn.Read(make([]byte, 1))
						status <- 0
					}()
				}
				for {
					select {
					case <-s.running:
						return false
					case <-status: // refused, or reset while it asked
						return true
					case <-time.After(time.Millisecond):
						if token == "" && s.shared.Stats().Used > before && !s.resting("127.0.0.2") {
							return false
						}
					}
				}
			}
			for n := 0; !busy(); n++ {
				if n > 40 {
					t.Fatal("it is not bounded")
				}
			}
			quiet := s.connectFrom("127.0.0.3")
			waittest.Until(t, "it has a place", func() bool { return s.resting("127.0.0.3") })
			for range 20 {
				if !busy() {
					t.Error("it has got another connection")
				}
			}
			if got := s.ask(quiet, "other", listing, ""); got != 200 {
				t.Errorf("another address: %d", got)
			}
		})
	}
}

// TestPlacesOfWhoHasMost has a full pool: a place is taken from the address that has the most, and from none that has
// as few as the one that asks.
func TestPlacesOfWhoHasMost(t *testing.T) {
	c, enter := entrance(t, 8)
	var many []*wire
	for range 2 {
		w, _ := enter("192.0.2.1:1")
		many = append(many, w)
	}
	few := map[string]*wire{}
	for _, address := range []string{"192.0.2.2:1", "192.0.2.3:1", "192.0.2.4:1"} {
		few[address], _ = enter(address)
	}
	if used := c.Stats().Used; used != 5 {
		t.Fatalf("%d places are taken", used)
	}
	for _, w := range few {
		c.work(w)
	}
	if _, ok := enter("192.0.2.5:1"); !ok || !many[0].evicted || many[1].evicted {
		t.Errorf("a new address: %t, and those of the one with most: %t, %t", ok, many[0].evicted, many[1].evicted)
	}
	if _, ok := enter("192.0.2.2:1"); ok || many[1].evicted {
		t.Error("an address that has one took that of another one with one")
	}
	if used := c.Stats().Used; used != 5 {
		t.Errorf("%d places are taken", used)
	}
}

// entrance returns what bounds connections, and what opens one from an address.
func entrance(t *testing.T, most int) (c *Connections, enter func(address string) (*wire, bool)) {
	c = NewConnections(most)
	return c, func(address string) (*wire, bool) {
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		w := &wire{Conn: addressed{near, address}, of: c}
		return w, c.enter(w, "", false)
	}
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	address string
}

func (a addressed) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.address))
}

// TestACallerWithFewConnectionsGetsIn has idle strangers take all places: a caller goes on with the place of a connection that
// came in as an address.
func TestACallerWithFewConnectionsGetsIn(t *testing.T) {
	c, enter := entrance(t, 64)
	calls := func(address string) error {
		w, entered := enter(address)
		if !entered || !c.work(w) {
			t.Fatalf("%s does not get in", address)
		}
		return c.identify(w, "engine")
	}
	if err := calls("192.0.2.1:1"); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		enter(fmt.Sprintf("198.51.100.%d:1", i))
	}
	for i := range 3 {
		if err := calls(fmt.Sprintf("192.0.2.%d:1", 2+i)); err != nil {
			t.Errorf("number %d: %v", i, err)
		}
	}
	if n := c.shared.Of("caller engine"); n != 4 {
		t.Errorf("it has %d places", n)
	}
}
