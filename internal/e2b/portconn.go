package e2b

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/daycare-run/sandbox/dockerexec"
)

// portCloseLimit is how long the program at a port has to read what was sent to it once the connection is closed.
const portCloseLimit = time.Second

// portConn is a connection to a port, as net/http wants it. It ends when it has been idle for long.
type portConn struct {
	dockerexec.PortConn
	idle *time.Timer
	end  func()

	writing sync.Mutex
	broken  bool // a write has failed, perhaps in part
}

// newPortConn returns a portConn that calls give when it is over.
func newPortConn(conn dockerexec.PortConn, give func()) *portConn {
	c := &portConn{PortConn: conn}
	c.end = sync.OnceFunc(func() {
		_ = conn.SetWriteDeadline(time.Now().Add(portCloseLimit))
		go func() {
			c.writing.Lock()
			defer c.writing.Unlock()
			if !c.broken {
				_ = conn.CloseWrite()
			}
		}()
		time.AfterFunc(portCloseLimit, func() {
			conn.Abort()
			give()
		})
	})
	c.idle = time.AfterFunc(idlePortConn, c.end)
	return c
}

func (c *portConn) Read(b []byte) (int, error) {
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
