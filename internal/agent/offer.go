//go:build linux

package agent

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/daycare-run/sandbox/internal/agent/wire"
)

// offered are the ports at which the agent listens in the place of programs elsewhere. The service
// fetches each connection, so it decides how many there are; the others wait in the kernel here.
type offered struct {
	turn    sync.Mutex // held by the stream that says which ports there are
	arrived chan arrival
}

// arrival is a connection to an offered port.
type arrival struct {
	port int
	conn *net.TCPConn
	over <-chan struct{} // closed when the port is no longer offered
}

func newOffered() *offered { return &offered{arrived: make(chan arrival)} }

// offer listens at the ports that the service names, until the stream ends.
func (o *offered) offer(stream *yamux.Stream) {
	o.turn.Lock() // the ports of the stream before are free then
	defer o.turn.Unlock()
	open := map[int]func(){} // closes each
	defer func() {
		for _, end := range open {
			end()
		}
		_ = stream.Close()
	}()
	for {
		want, err := wire.ReadPorts(stream)
		if err != nil {
			return
		}
		for port, end := range open {
			if !slices.Contains(want, port) {
				end()
				delete(open, port)
			}
		}
		var at []int
		for _, port := range want {
			if open[port] == nil {
				if end := o.listen(port); end != nil {
					open[port] = end
				}
			}
			if open[port] != nil {
				at = append(at, port)
			}
		}
		if err := wire.WritePorts(stream, at); err != nil {
			return
		}
	}
}

// listen listens at a port of the loopback, over IPv4 and, if it can, IPv6. It returns nil if
// another program has the port.
func (o *offered) listen(port int) (end func()) {
	var listeners []net.Listener
	ctx, cancel := context.WithCancel(context.Background())
	serve := func(network, address string) bool {
		var l net.ListenConfig
		listener, err := l.Listen(ctx, network, net.JoinHostPort(address, strconv.Itoa(port)))
		if err != nil {
			return false
		}
		listeners = append(listeners, listener)
		go o.serve(ctx, listener.(*net.TCPListener), port)
		return true
	}
	if !serve("tcp4", "127.0.0.1") {
		cancel()
		return nil
	}
	serve("tcp6", "::1")
	return func() {
		cancel()
		for _, listener := range listeners {
			_ = listener.Close()
		}
	}
}

// serve hands on what connects to a port, until ctx ends.
func (o *offered) serve(ctx context.Context, listener *net.TCPListener, port int) {
	for {
		conn, err := listener.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				reset(conn)
			}
			return
		}
		if err != nil { // out of descriptors, say
			time.Sleep(100 * time.Millisecond)
			continue
		}
		select {
		case o.arrived <- arrival{port, conn, ctx.Done()}:
		case <-ctx.Done():
			reset(conn)
			return
		}
	}
}

// accept waits for the next connection, and connects it to the stream.
func (o *offered) accept(stream *yamux.Stream) {
	answered := make(chan error, 1)
	go func() { answered <- wire.ReadAnswer(stream) }()
	select {
	case a := <-o.arrived:
		select {
		case <-answered: // the service has given this fetch up
			_ = stream.Reset()
			o.handBack(a)
			return
		default:
		}
		if wire.WritePort(stream, a.port) != nil || <-answered != nil {
			_ = stream.Reset()
			reset(a.conn)
			return
		}
		carry(stream, a.conn)
	case <-answered:
		_ = stream.Reset()
	}
}

// handBack lets another fetch have a connection.
func (o *offered) handBack(a arrival) {
	select {
	case o.arrived <- a:
	case <-a.over:
		reset(a.conn)
	}
}

// reset breaks a connection.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
