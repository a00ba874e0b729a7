package e2b

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/dockerexec/session"
)

// portCloseLimit is how long the program at a port has to read what was sent to it, and to close
// its end, once the connection is closed. Then the connection is broken off.
const portCloseLimit = time.Second

// portConn is a connection to a port, as net/http wants it. It ends when it has been idle for long.
type portConn struct {
	session.PortConn
	idle *time.Timer
	end  func() // gives back its place, once; it closes over what is left to end

	writing sync.Mutex
	broken  bool       // a write has failed, perhaps in part
	reading sync.Mutex // held while somebody reads
}

// newPortConn returns a portConn that calls give when both of its directions have ended, or it was
// broken off.
func newPortConn(conn session.PortConn, give func()) *portConn {
	c := &portConn{PortConn: conn}
	c.end = sync.OnceFunc(func() {
		_ = conn.SetWriteDeadline(time.Now().Add(portCloseLimit))
		late := time.AfterFunc(portCloseLimit, conn.Abort)
		go func() {
			defer give()
			defer late.Stop()
			if !c.finish() {
				conn.Abort()
				return
			}
			_ = conn.Close()
		}()
	})
	c.idle = time.AfterFunc(idlePortConn, c.end)
	return c
}

// finish ends the direction to the program, waits for the end of the other one, and reports whether
// both have ended well.
func (c *portConn) finish() bool {
	c.writing.Lock()
	whole := !c.broken && c.PortConn.CloseWrite() == nil
	c.writing.Unlock()
	if !whole {
		return false
	}
	c.reading.Lock() // whoever still reads sees the end, too
	defer c.reading.Unlock()
	_, err := io.Copy(io.Discard, c.PortConn)
	return err == nil
}

func (c *portConn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	n, err := c.PortConn.Read(b)
	c.idle.Reset(idlePortConn)
	return n, err
}

func (c *portConn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	n, err := c.PortConn.Write(b)
	c.broken = c.broken || err != nil
	c.idle.Reset(idlePortConn)
	return n, err
}

func (c *portConn) Close() error {
	c.end()
	c.idle.Stop()
	return nil
}

func (c *portConn) LocalAddr() net.Addr  { return portAddr{} }
func (c *portConn) RemoteAddr() net.Addr { return portAddr{} }

func (c *portConn) SetDeadline(time.Time) error     { return errors.ErrUnsupported }
func (c *portConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// portAddr is the address of a connection that does not use the network.
type portAddr struct{}

func (portAddr) Network() string { return "sandbox" }
func (portAddr) String() string  { return "a sandbox's loopback" }
