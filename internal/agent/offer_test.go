//go:build linux

package agent

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/mux"
	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// The tables are as gVisor and Linux write them on a machine with the least significant byte first.
func TestPortsInATable(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   4: 0100007F:0BB9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0        5 1 0000000000000000 0 0 0 0 -1
   5: 00000000:0BBA 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0        6 1 0000000000000000 0 0 0 0 -1
   6: 0100007F:0BBB 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0        6 1 0000000000000000 0 0 0 0 -1
   7: 050011AC:0BBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0        6 1 0000000000000000 0 0 0 0 -1
   8: 00000000000000000000000000000000:0BBD 00000000000000000000000000000000:0000 0A
   9: 00000000000000000000000001000000:0BBE 00000000000000000000000000000000:0000 0A
  10: 0000000000000000FFFF00000100007F:0BBF 00000000000000000000000000000000:0000 0A
  11: B80D0120000000000000000001000000:0BC0 00000000000000000000000000000000:0000 0A
  12: 0100007F 00000000:0000 0A
  13: 01:0BC1 00000000:0000 0A
  14: 010000:0BC2 00000000:0000 0A
  15: zz00007F:0BC3 00000000:0000 0A
  16:
`
	if got, want := listeningIn([]byte(table)), []int{3001, 3002, 3005, 3006, 3007}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// streams returns both ends of a session, with a function that opens a stream and has serve serve its other end.
func streams(t *testing.T) (open func(serve func(*yamux.Stream)) *yamux.Stream) {
	t.Helper()
	near, far := net.Pipe()
	client, err := yamux.Client(near, mux.Config(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := yamux.Server(far, mux.Config(100), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return func(serve func(*yamux.Stream)) *yamux.Stream {
		stream, err := client.OpenStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if inside, err := server.AcceptStream(); err == nil {
				serve(inside)
			}
		}()
		return stream
	}
}

// freePorts returns ports of the loopback at which nobody listens.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	slices.Sort(ports)
	return ports
}

// The agent listens at the ports that the service names, as long as it names them, and carries each connection that the
// service fetches. A port that a program has is left to it.
func TestOfferedPorts(t *testing.T) {
	open, o := streams(t), newOffered()
	ports := freePorts(t, 3)
	taken, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(ports[2]))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	offer := open(o.offer)
	set := func(offer *yamux.Stream, want, at []int) {
		t.Helper()
		if err := wire.WritePorts(offer, want); err != nil {
			t.Fatal(err)
		}
		if got, err := wire.ReadPorts(offer); !slices.Equal(got, at) || err != nil {
			t.Fatalf("at %v, %v, want %v", got, err, at)
		}
	}
	dial := func(port int) (net.Conn, error) { return net.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(port)) }
	set(offer, ports, ports[:2])
	set(offer, ports[:1], ports[:1])
	if c, err := dial(ports[1]); err == nil {
		c.Close()
		t.Error("a port that was taken back is open")
	}

	c, err := dial(ports[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fetched := open(o.accept)
	if port, err := wire.ReadPort(fetched); port != ports[0] || err != nil {
		t.Fatalf("port %d, %v", port, err)
	}
	if err := wire.AnswerPort(fetched, nil); err != nil {
		t.Fatal(err)
	}
	carried := wire.Carry(fetched)
	fmt.Fprint(carried, "hello")
	_ = carried.CloseWrite()
	if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}

	// One that the service refuses is broken, and so is one that nobody fetches when the offer ends.
	refused, err := dial(ports[0])
	if err != nil {
		t.Fatal(err)
	}
	fetched = open(o.accept)
	if _, err := wire.ReadPort(fetched); err != nil {
		t.Fatal(err)
	}
	_ = fetched.Reset()
	if _, err := io.ReadAll(refused); err == nil {
		t.Error("a refused connection ends as if it were whole")
	}
	waiting, err := dial(ports[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = offer.Reset()
	if _, err := io.ReadAll(waiting); err == nil {
		t.Error("a connection outlives the offer")
	}
	set(open(o.offer), ports[:2], ports[:2]) // at once
}

// A fetch that is given up takes no connection.
func TestAFetchThatIsGivenUp(t *testing.T) {
	open, o := streams(t), newOffered()
	port := freePorts(t, 1)
	offer, gone := open(o.offer), make(chan struct{})
	if err := wire.WritePorts(offer, port); err != nil {
		t.Fatal(err)
	}
	if _, err := wire.ReadPorts(offer); err != nil {
		t.Fatal(err)
	}
	_ = open(func(s *yamux.Stream) { o.accept(s); close(gone) }).Reset()
	<-gone
	c, err := net.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(port[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := wire.ReadPort(open(o.accept)); got != port[0] || err != nil {
		t.Errorf("port %d, %v", got, err)
	}
}

// Ports are told at once, and again when they change.
func TestPortsAreTold(t *testing.T) {
	open := streams(t)
	told := open(func(s *yamux.Stream) { _ = tellPorts(s) })
	before, err := wire.ReadPorts(told)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for at := before; !slices.Contains(at, port); {
		if at, err = wire.ReadPorts(told); err != nil {
			t.Fatal(err)
		}
	}
}
