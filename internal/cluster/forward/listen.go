package forward

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/internal/fair"
)

const (
	// maxUnproved is how many connections there may be at a time whose other end has not shown a
	// certificate yet. One address may have a quarter of them.
	maxUnproved = 4096
	// proofLimit is how long the other end has to show its certificate.
	proofLimit = 10 * time.Second
)

// hostsOnly returns only connections of hosts, as *tls.Conn. Other connections take few places, and
// none for long.
type hostsOnly struct {
	net.Listener
	config   *tls.Config
	unproved *fair.Pool
	accepted chan accepted
	closed   chan struct{}
	close    func() // closes closed
}

type accepted struct {
	conn net.Conn
	err  error
}

// Listen returns a listener on l that accepts only hosts of the cluster. Its Close closes l.
func (c Certificates) Listen(l net.Listener) net.Listener {
	h := &hostsOnly{Listener: l, config: c.server(), unproved: fair.NewPool(maxUnproved, 0),
		accepted: make(chan accepted), closed: make(chan struct{})}
	h.close = sync.OnceFunc(func() { close(h.closed) })
	go h.acceptAll()
	return h
}

// Accept implements net.Listener.
func (h *hostsOnly) Accept() (net.Conn, error) {
	select {
	case a := <-h.accepted:
		return a.conn, a.err
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *hostsOnly) Close() error {
	h.close()
	return h.Listener.Close()
}

func (h *hostsOnly) acceptAll() {
	for {
		conn, err := h.Listener.Accept()
		switch {
		case err != nil:
			// http.Server waits for a while if the error is temporary.
			if !h.give(accepted{err: err}) || errors.Is(err, net.ErrClosed) {
				return
			}
		case h.unproved.Take(addressOf(conn), 1):
			go h.prove(conn)
		default:
			_ = conn.Close()
		}
	}
}

// prove passes a connection to Accept once its other end has shown a certificate.
func (h *hostsOnly) prove(conn net.Conn) {
	encrypted := tls.Server(conn, h.config)
	err := errors.Join(conn.SetDeadline(time.Now().Add(proofLimit)), encrypted.Handshake(),
		conn.SetDeadline(time.Time{}))
	h.unproved.Give(addressOf(conn), 1)
	if err != nil || !h.give(accepted{conn: encrypted}) {
		_ = conn.Close()
	}
}

// give passes a to Accept. It reports false if the listener is closed.
func (h *hostsOnly) give(a accepted) bool {
	select {
	case h.accepted <- a:
		return true
	case <-h.closed:
		return false
	}
}

// addressOf returns the address or network whose share a connection uses. A client with one IPv6
// address usually has 2^64.
func addressOf(conn net.Conn) string {
	addr := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	prefix, _ := addr.WithZone("").Prefix(min(addr.BitLen(), 64)) // never fails: the length fits the address
	return prefix.String()
}
